cdef class Candidates:
    cdef double[::1] value
    cdef long long[::1] token
    cdef readonly Py_ssize_t kept

    cdef void cut(self, Py_ssize_t count) noexcept nogil
    cdef void write(
        self, Py_ssize_t row, Py_ssize_t count, long long[:, ::1] tokens, double[:, ::1] log_score
    ) noexcept nogil

cdef class LogSums:
    cdef double[::1] scale
    cdef double[::1] total

    cdef void clear(self) noexcept nogil
    cdef void add(self, Py_ssize_t c, double log_x) noexcept nogil
    cdef double log_of(self, Py_ssize_t c) noexcept nogil
