cdef class Steps:
    cdef readonly int final
    cdef readonly Py_ssize_t vocabulary_size
    cdef readonly Py_ssize_t num_words
    cdef readonly Steps successor
    cdef const int[::1] number

    cdef int next_state(self, int state, long long remaining, long long token) noexcept
    cdef int write_row(self, int state, long long remaining, int* out) except? -1
    cdef long long num_allowed(self, int state, long long remaining) except? -1
    cdef long long only_token(self, int state, long long remaining) except? -1
