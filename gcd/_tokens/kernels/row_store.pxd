cdef class RowStore:
    cdef Py_ssize_t num_classes
    cdef Py_ssize_t num_targets
    cdef int num_patterns
    cdef int[::1] pattern_of
    cdef long long[::1] begin
    cdef int[::1] count
    cdef int[::1] targets
    cdef int[::1] start
    cdef int[:, ::1] entries
    cdef int[::1] table
    cdef unsigned long long[::1] hashes
    cdef int[::1] seen
    cdef int[::1] number
    cdef int[::1] place

    cdef bint has_room(self) noexcept nogil
    cdef void grow(self)
    cdef void add(
        self, Py_ssize_t state, const int[::1] found, const int[::1] target, Py_ssize_t count
    ) noexcept nogil
