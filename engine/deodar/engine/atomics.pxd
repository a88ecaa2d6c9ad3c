# C11-style atomics for plain integers and pointers in shared structs, as GCC and Clang builtins.
# The order is in the name; there is no sequentially consistent default to forget.
from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef DEODAR_ATOMICS_H
    #define DEODAR_ATOMICS_H
    #include <stdint.h>
    static inline uint64_t load_acquire_u64(const uint64_t* p)
        { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline uint64_t load_relaxed_u64(const uint64_t* p)
        { return __atomic_load_n(p, __ATOMIC_RELAXED); }
    static inline void store_release_u64(uint64_t* p, uint64_t v)
        { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline void store_relaxed_u64(uint64_t* p, uint64_t v)
        { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
    static inline uint64_t add_relaxed_u64(uint64_t* p, uint64_t v)
        { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
    static inline int cas_u64(uint64_t* p, uint64_t expected, uint64_t desired)
        { return __atomic_compare_exchange_n(p, &expected, desired, 0,
                                             __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); }
    static inline uint32_t load_acquire_u32(const uint32_t* p)
        { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void store_release_u32(uint32_t* p, uint32_t v)
        { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline uint32_t add_acq_rel_u32(uint32_t* p, uint32_t v)
        { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
    static inline int cas_u32(uint32_t* p, uint32_t expected, uint32_t desired)
        { return __atomic_compare_exchange_n(p, &expected, desired, 0,
                                             __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); }
    static inline uint8_t load_acquire_u8(const uint8_t* p)
        { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void store_release_u8(uint8_t* p, uint8_t v)
        { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline int cas_u8(uint8_t* p, uint8_t expected, uint8_t desired)
        { return __atomic_compare_exchange_n(p, &expected, desired, 0,
                                             __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); }
    static inline void fence_full(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    static inline void prefetch_read(const void* p) { __builtin_prefetch(p, 0, 3); }
    #if defined(__x86_64__) || defined(__i386__)
    static inline void spin_pause(void) { __builtin_ia32_pause(); }
    #else
    static inline void spin_pause(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
    #endif
    #endif
    """
    unsigned long long load_acquire_u64(const uint64_t* p) noexcept nogil
    unsigned long long load_relaxed_u64(const uint64_t* p) noexcept nogil
    void store_release_u64(uint64_t* p, uint64_t v) noexcept nogil
    void store_relaxed_u64(uint64_t* p, uint64_t v) noexcept nogil
    unsigned long long add_relaxed_u64(uint64_t* p, uint64_t v) noexcept nogil
    bint cas_u64(uint64_t* p, uint64_t expected, uint64_t desired) noexcept nogil
    unsigned int load_acquire_u32(const uint32_t* p) noexcept nogil
    void store_release_u32(uint32_t* p, uint32_t v) noexcept nogil
    unsigned int add_acq_rel_u32(uint32_t* p, uint32_t v) noexcept nogil
    bint cas_u32(uint32_t* p, uint32_t expected, uint32_t desired) noexcept nogil
    unsigned char load_acquire_u8(const unsigned char* p) noexcept nogil
    void store_release_u8(unsigned char* p, unsigned char v) noexcept nogil
    bint cas_u8(unsigned char* p, unsigned char expected, unsigned char desired) noexcept nogil
    void fence_full() noexcept nogil
    void prefetch_read(const void* p) noexcept nogil
    void spin_pause() noexcept nogil
