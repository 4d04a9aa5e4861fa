from gcd._serving.kernels.steps cimport Steps

cdef class Table(Steps):
    cdef readonly object arrays
    cdef const int[::1] class_of
    cdef const int[::1] steps
    cdef const int[::1] reach
    cdef const int[::1] pattern_of
    cdef const int[::1] target_start
    cdef const int[::1] targets
    cdef const int[::1] pattern_start
    cdef const int[::1] pattern_class
    cdef const int[::1] pattern_target
    cdef const long long[::1] class_size
    cdef const long long[::1] class_token
    cdef const int[::1] pair_start
    cdef const int[::1] pair_word
    cdef const int[::1] pair_bits
    cdef const int[::1] dense_of
    cdef const int[:, ::1] dense
    cdef const int[::1] cost
    cdef int[:, ::1] row
    cdef int[::1] chosen
    cdef int[::1] known_slot
    cdef unsigned long long[:, ::1] key
    cdef unsigned long long[::1] bits
    cdef unsigned long long[::1] tag
    cdef long long[::1] serial
    cdef long long[::1] used
    cdef long long[::1] known_serial
    cdef long long[::1] clock
