cdef class SubsetStore:
    cdef int[::1] pool
    cdef long long[::1] starts
    cdef long long[::1] hashes
    cdef int[::1] table

    cdef long long number(self, long long count, int[::1] members, long long size)
