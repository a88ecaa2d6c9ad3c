from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from .core cimport StoreCore
from .damage cimport region_header_rule
from .hashing cimport Path, path_compare, path_of
from .log cimport (
    REGION_ACTIVE,
    REGION_FREE,
    REGION_NONE,
    REGION_SEALED,
    KvRegion,
    Log,
    log_corrupt,
    region_address,
    region_of,
)
from .record cimport (
    FLAG_COPIED,
    FLAG_RELOCATED,
    RECORD_DELETE,
    RECORD_LINK,
    RECORD_PUT,
    RECORD_SEAL,
    REGION_HEADER_BYTES,
    RecordView,
    RegionHeader,
    record_decode,
)
from .space cimport space_at
from .status cimport (
    STATUS_CORRUPT,
    STATUS_NO_MEMORY,
    STATUS_OK,
    Failure,
    Status,
    failure_clear,
    failure_set,
)
from .threads cimport mutex_lock, mutex_unlock
from .triecheck cimport TrieStats, trie_check
from .triewalk cimport TrieEntry, trie_walk
from .triespace cimport triespace_check

cdef enum:
    FINDINGS_MAX = 100
    WALK_ENTRIES = 512

cdef struct Findings:
    Failure[FINDINGS_MAX] found
    uint32_t count
    uint64_t* live_bytes                # owned: counted anew, one a region
    uint64_t* expiring_bytes            # owned


cdef list check_core(StoreCore* core):
    cdef Findings* findings = <Findings*> calloc(1, sizeof(Findings))
    cdef uint32_t index
    cdef list lines = []
    if findings == NULL:
        raise MemoryError()
    with nogil:
        mutex_lock(&core.log.mutex)
        check_locked(core, findings)
        mutex_unlock(&core.log.mutex)
    for index in range(findings.count):
        lines.append(line_of(&findings.found[index]))
    free(findings.live_bytes)
    free(findings.expiring_bytes)
    free(findings)
    return lines


cdef str line_of(const Failure* failure):
    file = (<bytes> failure.file).decode("utf-8", "replace")
    rule = (<bytes> failure.rule).decode("utf-8", "replace")
    return f"{file} at byte {failure.offset}: {rule}" if file else rule


cdef void check_locked(StoreCore* core, Findings* findings) noexcept nogil:
    cdef TrieStats stats
    cdef Failure failure
    findings.live_bytes = <uint64_t*> calloc(core.log.region_count, sizeof(uint64_t))
    findings.expiring_bytes = <uint64_t*> calloc(core.log.region_count, sizeof(uint64_t))
    if findings.live_bytes == NULL or findings.expiring_bytes == NULL:
        report(findings, failure_set(NULL, STATUS_NO_MEMORY, 0, NULL, 0, NULL), "no memory")
        return
    failure_clear(&failure)
    memset(&stats, 0, sizeof(TrieStats))
    if trie_check(&core.trie, &stats, &failure) != STATUS_OK:
        keep(findings, &failure)
    elif stats.keys != core.trie.key_count:
        report(findings, STATUS_CORRUPT, "the trie does not hold as many keys as it counts")
    failure_clear(&failure)
    if triespace_check(core.triespace, &failure) != STATUS_OK:
        keep(findings, &failure)
    check_entries(core, findings)
    check_regions(&core.log, findings)


cdef void keep(Findings* findings, const Failure* failure) noexcept nogil:
    if findings.count < FINDINGS_MAX:
        findings.found[findings.count] = failure[0]
        findings.count += 1


cdef void report(Findings* findings, Status status, const char* rule) noexcept nogil:
    cdef Failure failure
    failure_clear(&failure)
    failure_set(&failure, status, 0, NULL, 0, rule)
    keep(findings, &failure)


cdef void report_at(
    const Log* log, Findings* findings, uint64_t address, const char* rule
) noexcept nogil:
    cdef Failure failure
    failure_clear(&failure)
    log_corrupt(log, address, rule, &failure)
    keep(findings, &failure)


# Each entry of the trie: a good record, at the place of its path; live bytes are counted anew.
cdef void check_entries(StoreCore* core, Findings* findings) noexcept nogil:
    cdef TrieEntry[WALK_ENTRIES] entries
    cdef Path path
    cdef uint32_t count = 0
    cdef uint32_t index
    cdef bint more = True
    cdef Failure failure
    memset(&path, 0, sizeof(Path))
    while more:
        failure_clear(&failure)
        if trie_walk(
            &core.trie, path, entries, WALK_ENTRIES, &count, &path, &more, &failure
        ) != STATUS_OK:
            keep(findings, &failure)
            return
        for index in range(count):
            check_entry(&core.log, findings, &entries[index])


cdef void check_entry(Log* log, Findings* findings, const TrieEntry* entry) noexcept nogil:
    cdef uint32_t region = region_of(log, entry.address)
    cdef const char* rule = NULL
    cdef RecordView view
    cdef Path path
    if region >= log.region_count or (
        log.regions[region].state != REGION_ACTIVE and log.regions[region].state != REGION_SEALED
    ):
        report_at(log, findings, entry.address, "an entry of the trie points outside the log")
        return
    if not record_decode(
        space_at(&log.space, entry.address),
        region_address(log, region)
        + <uint64_t> log.regions[region].run_regions * log.space.region_bytes
        - entry.address,
        log.regions[region].sequence,
        &view,
        &rule,
    ):
        report_at(log, findings, entry.address, rule)
        return
    path = path_of(view.key, view.key_bytes)
    if view.kind != RECORD_PUT or path_compare(path, entry.path) != 0:
        report_at(log, findings, entry.address, "an entry of the trie points at another record")
        return
    findings.live_bytes[region] += view.record_bytes
    if view.deadline_ms != 0:
        findings.expiring_bytes[region] += view.record_bytes


# The list of regions (L1), the counts of live bytes (L4), and each region's records.
cdef void check_regions(Log* log, Findings* findings) noexcept nogil:
    cdef uint32_t region = log.first
    cdef uint32_t index
    cdef uint32_t free_count = 0
    cdef uint64_t sequence = 0
    cdef uint64_t last_version = 0
    cdef const KvRegion* entry
    for index in range(log.region_count):
        if log.regions[index].state == REGION_FREE:
            free_count += 1
    if free_count != log.free_count:
        report(findings, STATUS_CORRUPT, "the count of free regions is wrong")
    while region != REGION_NONE:
        entry = &log.regions[region]
        if entry.sequence <= sequence:
            report_at(
                log, findings, region_address(log, region), "L1: sequences rise along the log"
            )
        sequence = entry.sequence
        if (entry.state == REGION_ACTIVE) != (entry.next == REGION_NONE):
            report_at(
                log, findings, region_address(log, region), "L1: the last region is active"
            )
        if (
            entry.live_bytes != findings.live_bytes[region]
            or entry.expiring_bytes != findings.expiring_bytes[region]
        ):
            report_at(
                log, findings, region_address(log, region), "L4: live bytes are counted wrong"
            )
        check_records(log, findings, region, &last_version)
        region = entry.next
    if log.last_version < last_version:
        report(findings, STATUS_CORRUPT, "R2: a record is newer than the last version")


cdef void check_records(
    Log* log, Findings* findings, uint32_t region, uint64_t* last_version
) noexcept nogil:
    cdef const KvRegion* entry = &log.regions[region]
    cdef uint64_t start = region_address(log, region)
    cdef uint64_t end = start + entry.used_bytes
    cdef uint64_t at = start + REGION_HEADER_BYTES
    cdef const char* rule
    cdef RecordView view
    if region == log.active:
        end = log.tail
    rule = region_header_rule(
        log, <const RegionHeader*> space_at(&log.space, start), region, entry.sequence
    )
    if rule != NULL:
        report_at(log, findings, start, rule)
    view.kind = RECORD_SEAL
    while at < end:
        if not record_decode(
            space_at(&log.space, at), end - at, entry.sequence, &view, &rule
        ):
            report_at(log, findings, at, rule)
            return
        if view.kind <= RECORD_DELETE and view.flags & (FLAG_RELOCATED | FLAG_COPIED) == 0:
            if view.version <= last_version[0]:
                report_at(log, findings, at, "R2: versions rise along the log")
            last_version[0] = view.version
        at += view.record_bytes
    if region != log.active and view.kind != RECORD_LINK:
        report_at(log, findings, end, "R5: a region does not end with a LINK")
