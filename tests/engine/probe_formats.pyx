"""Sizes and offsets of the structs of `identity.pxd` and `checkpoint.pxd`, for the layout."""

from deodar.engine.checkpoint cimport CheckpointHeader, RegionEntry
from deodar.engine.identity cimport Identity, Session
from deodar.engine.log cimport (
    REGION_ACTIVE,
    REGION_DOOMED,
    REGION_EVACUATED,
    REGION_FREE,
    REGION_INSIDE_RUN,
    REGION_SEALED,
    SEAL_RECORD_BYTES,
)
from deodar.engine.trieimage cimport PageEntry


def layout() -> dict[str, int]:
    """As `tests/golden/v1/layout.json` has it under "files"."""
    cdef Identity identity
    cdef Session session
    cdef CheckpointHeader header
    cdef RegionEntry entry
    cdef PageEntry page
    cdef char* a = <char*> &identity
    cdef char* b = <char*> &session
    cdef char* c = <char*> &header
    cdef char* d = <char*> &entry
    cdef char* e = <char*> &page
    return {
        "Identity": sizeof(Identity),
        "Identity.magic": <char*> &identity.magic - a,
        "Identity.format_version": <char*> &identity.format_version - a,
        "Identity.region_bytes": <char*> &identity.region_bytes - a,
        "Identity.store_id": <char*> &identity.store_id - a,
        "Identity.sluggishness": <char*> &identity.sluggishness - a,
        "Identity.padding": <char*> &identity.padding - a,
        "Identity.checksum": <char*> &identity.checksum - a,
        "Session": sizeof(Session),
        "Session.incarnation": <char*> &session.incarnation - b,
        "Session.log_epoch": <char*> &session.log_epoch - b,
        "Session.base_epoch": <char*> &session.base_epoch - b,
        "Session.base_version": <char*> &session.base_version - b,
        "Session.base_sequence": <char*> &session.base_sequence - b,
        "Session.padding": <char*> &session.padding - b,
        "Session.checksum": <char*> &session.checksum - b,
        "CheckpointHeader": sizeof(CheckpointHeader),
        "CheckpointHeader.magic": <char*> &header.magic - c,
        "CheckpointHeader.format_version": <char*> &header.format_version - c,
        "CheckpointHeader.flags": <char*> &header.flags - c,
        "CheckpointHeader.store_id": <char*> &header.store_id - c,
        "CheckpointHeader.number": <char*> &header.number - c,
        "CheckpointHeader.incarnation": <char*> &header.incarnation - c,
        "CheckpointHeader.position": <char*> &header.position - c,
        "CheckpointHeader.position_sequence": <char*> &header.position_sequence - c,
        "CheckpointHeader.sealed_epoch": <char*> &header.sealed_epoch - c,
        "CheckpointHeader.closed_epoch": <char*> &header.closed_epoch - c,
        "CheckpointHeader.last_version": <char*> &header.last_version - c,
        "CheckpointHeader.log_start": <char*> &header.log_start - c,
        "CheckpointHeader.trie_root": <char*> &header.trie_root - c,
        "CheckpointHeader.key_count": <char*> &header.key_count - c,
        "CheckpointHeader.branch_count": <char*> &header.branch_count - c,
        "CheckpointHeader.leaf_count": <char*> &header.leaf_count - c,
        "CheckpointHeader.leaf_slots": <char*> &header.leaf_slots - c,
        "CheckpointHeader.page_count": <char*> &header.page_count - c,
        "CheckpointHeader.region_count": <char*> &header.region_count - c,
        "CheckpointHeader.padding": <char*> &header.padding - c,
        "RegionEntry": sizeof(RegionEntry),
        "RegionEntry.sequence": <char*> &entry.sequence - d,
        "RegionEntry.live_bytes": <char*> &entry.live_bytes - d,
        "RegionEntry.used_bytes": <char*> &entry.used_bytes - d,
        "RegionEntry.last_version": <char*> &entry.last_version - d,
        "RegionEntry.expiring_bytes": <char*> &entry.expiring_bytes - d,
        "RegionEntry.last_deadline_ms": <char*> &entry.last_deadline_ms - d,
        "RegionEntry.run_regions": <char*> &entry.run_regions - d,
        "RegionEntry.state": <char*> &entry.state - d,
        "PageEntry": sizeof(PageEntry),
        "PageEntry.frame": <char*> &page.frame - e,
        "PageEntry.checksum": <char*> &page.checksum - e,
        "SEAL_RECORD_BYTES": SEAL_RECORD_BYTES,
        "REGION_FREE": <int> REGION_FREE,
        "REGION_ACTIVE": <int> REGION_ACTIVE,
        "REGION_SEALED": <int> REGION_SEALED,
        "REGION_EVACUATED": <int> REGION_EVACUATED,
        "REGION_DOOMED": <int> REGION_DOOMED,
        "REGION_INSIDE_RUN": <int> REGION_INSIDE_RUN,
    }
