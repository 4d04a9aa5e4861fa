cdef class Part:
    cdef int steps
    cdef long long size
    cdef bint is_wide
    cdef const int[::1] ids
    cdef const int[::1] words

cdef class TokenTree:
    cdef const unsigned char[::1] byte
    cdef const int[::1] depth
    cdef const int[::1] skip
    cdef const int[::1] entry
    cdef const long long[::1] id_start
    cdef const int[::1] ids
    cdef const unsigned char[::1] text
    cdef const long long[::1] offsets
    cdef const int[::1] ends
    cdef unsigned char[::1] is_end
    cdef const int[::1] bit
    cdef Py_ssize_t max_depth
    cdef Py_ssize_t num_words
    cdef int[::1] found
    cdef int[::1] goal
    cdef int[::1] path
    cdef int[:, ::1] ahead

cdef class UnitPhase:
    cdef list ends
    cdef list unions
    cdef list parts
    cdef int furthest
    cdef int[:, ::1] exits

cdef class Unit:
    cdef TokenTree tree
    cdef const short[:, ::1] rows
    cdef list phases

    cdef UnitPhase at(self, int phase)

cdef Py_ssize_t walk(
    TokenTree tree, int state, Py_ssize_t first, Py_ssize_t last, const int[:, ::1] step,
    const unsigned char[::1] class_of, Py_ssize_t count
) noexcept
cdef tuple parts(TokenTree tree, Py_ssize_t count, int[::1] number)
cdef Part again(Part part, int steps)
cdef void add(TokenTree tree, Part part, int* out) noexcept
cdef long long single(Part part) noexcept
cdef void clear(int* out, Py_ssize_t num_words) noexcept
