# POSIX threads: a mutex, condition variables on the monotonic clock, and threads.
#
# An error of these calls can only be a fault of ours (a mutex that was never opened, a thread
# joined twice), so they abort.  The exception is thread_start: the system may refuse a thread.
# Nobody waits in them while holding the GIL.
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #ifndef DEODAR_THREADS_H
    #define DEODAR_THREADS_H
    #include <errno.h>
    #include <pthread.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <time.h>
    static inline void must_be_0(int error) { if (error != 0) abort(); }
    static inline uint64_t monotonic_ns(void) {
        struct timespec now;
        must_be_0(clock_gettime(CLOCK_MONOTONIC, &now));
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    static inline void mutex_open(pthread_mutex_t* m) { must_be_0(pthread_mutex_init(m, NULL)); }
    static inline void mutex_close(pthread_mutex_t* m) { must_be_0(pthread_mutex_destroy(m)); }
    static inline void mutex_lock(pthread_mutex_t* m) { must_be_0(pthread_mutex_lock(m)); }
    static inline void mutex_unlock(pthread_mutex_t* m) { must_be_0(pthread_mutex_unlock(m)); }
    static inline void condition_open(pthread_cond_t* c) {
        pthread_condattr_t attributes;
        must_be_0(pthread_condattr_init(&attributes));
        must_be_0(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC));
        must_be_0(pthread_cond_init(c, &attributes));
        must_be_0(pthread_condattr_destroy(&attributes));
    }
    static inline void condition_close(pthread_cond_t* c) { must_be_0(pthread_cond_destroy(c)); }
    static inline void condition_signal(pthread_cond_t* c) { must_be_0(pthread_cond_signal(c)); }
    static inline void condition_broadcast(pthread_cond_t* c)
        { must_be_0(pthread_cond_broadcast(c)); }
    static inline void condition_wait(pthread_cond_t* c, pthread_mutex_t* m)
        { must_be_0(pthread_cond_wait(c, m)); }
    static inline int condition_wait_until(pthread_cond_t* c, pthread_mutex_t* m, uint64_t ns) {
        struct timespec until = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        int error = pthread_cond_timedwait(c, m, &until);
        if (error == ETIMEDOUT) return 0;
        must_be_0(error);
        return 1;
    }
    static inline int thread_start(pthread_t* t, void* (*main)(void*), void* argument)
        { return pthread_create(t, NULL, main, argument); }
    static inline void thread_join(pthread_t t) { must_be_0(pthread_join(t, NULL)); }
    #endif
    """
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef unsigned long pthread_t

    unsigned long long monotonic_ns() noexcept nogil
    void mutex_open(pthread_mutex_t* m) noexcept nogil
    void mutex_close(pthread_mutex_t* m) noexcept nogil
    void mutex_lock(pthread_mutex_t* m) noexcept nogil
    void mutex_unlock(pthread_mutex_t* m) noexcept nogil
    void condition_open(pthread_cond_t* c) noexcept nogil
    void condition_close(pthread_cond_t* c) noexcept nogil
    void condition_signal(pthread_cond_t* c) noexcept nogil
    void condition_broadcast(pthread_cond_t* c) noexcept nogil
    void condition_wait(pthread_cond_t* c, pthread_mutex_t* m) noexcept nogil
    # False when `ns` on the monotonic clock has passed.
    bint condition_wait_until(pthread_cond_t* c, pthread_mutex_t* m, uint64_t ns) noexcept nogil
    # 0 or an errno.
    int thread_start(
        pthread_t* t, void* (*main)(void*) noexcept nogil, void* argument
    ) noexcept nogil
    void thread_join(pthread_t t) noexcept nogil
