# `wide` is the return type of functions that are compiled twice, for any processor and for one with
# AVX2, the right one being chosen when the module is loaded. That is GCC's, on Linux with glibc. No
# multiplication and addition are contracted, so that both give the same numbers.
cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
    #define GCD_WIDE __attribute__((target_clones("avx2", "default"))) void
    #else
    #define GCD_WIDE void
    #endif
    """
    ctypedef void wide "GCD_WIDE"
