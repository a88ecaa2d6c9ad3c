# The one assertion macro of the engine.  `check(condition, "rule")` states an invariant of ours:
# never a property of bytes that came from a disk or a caller.  In the debug build
# (DEODAR_DEBUG=1) a false condition prints the rule and aborts; otherwise it costs nothing.
cdef extern from *:
    """
    #ifndef DEODAR_DEBUG_H
    #define DEODAR_DEBUG_H
    #include <stdio.h>
    #include <stdlib.h>
    #ifdef DEODAR_DEBUG
    #define check(condition, rule) do { if (!(condition)) { \\
        fprintf(stderr, "%s:%d: invariant broken: %s\\n", __FILE__, __LINE__, rule); \\
        abort(); } } while (0)
    #else
    #define check(condition, rule) do { (void)sizeof(condition); (void)(rule); } while (0)
    #endif
    #endif
    """
    void check(bint condition, const char* rule) noexcept nogil
