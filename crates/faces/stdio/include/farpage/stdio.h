/* The C library's streams, reading large files where they lie: link with -lfarpage-stdio.
 *
 * All of <stdio.h> keeps its meaning. Without this header programs need no change at all; with it
 * getc and putc are compiled into them, and there are fmap and fbufsize. */
#ifndef FARPAGE_STDIO_H
#define FARPAGE_STDIO_H

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maps the file of `stream` from its start, shared: what is written there is in the file, and what
 * others write is seen.
 *
 * A stream that is only read: `size` bytes at most, the whole file when it is 0. One that may be
 * written: `size` bytes at least, which the file then has, with room on the disk for each; the file as
 * it is, or 64 KiB of a new one, when it is 0; it keeps that size: ftruncate it to have it shorter. To have
 * more, call it again: the address changes, and the old one ends; a map never has less than before. From
 * then on a stream that may be written has no buffer; fwrite and fseek beyond the end of the map fail
 * (EFBIG, EINVAL), also of one that appends. fclose ends the map.
 *
 * Where somebody else cuts the file off, zeros are read and ferror(stream) is set.
 *
 * Null when it cannot be mapped: errno is EINVAL of what is no regular file, EBADF of what has no
 * descriptor, ENODATA of an empty one that is only read, ENOSPC when the disk is full, or another of mmap(2). */
void *fmap(FILE *stream, size_t size);

/* Bytes that are mapped; of a stream that is not, the size of its buffer. */
size_t fbufsize(FILE *stream);

#ifdef __cplusplus
}
#else

/* glibc sets it in all streams when the process gets a second thread, and looks at it as here. */
#define FARPAGE_NEEDS_LOCK 0x80

/* As getc. A zero may be one that a file has that was cut off: the library looks at it. */
static inline int farpage_getc(FILE *stream)
{
	if (!(stream->_flags2 & FARPAGE_NEEDS_LOCK) && stream->_IO_read_ptr < stream->_IO_read_end) {
		unsigned char c = (unsigned char)*stream->_IO_read_ptr;

		if (__builtin_expect(c != 0, 1)) {
			stream->_IO_read_ptr++;
			return c;
		}
	}
	return (getc)(stream);
}

/* As putc. */
static inline int farpage_putc(int c, FILE *stream)
{
	if (!(stream->_flags2 & FARPAGE_NEEDS_LOCK) && stream->_IO_write_ptr < stream->_IO_write_end)
		return (unsigned char)(*stream->_IO_write_ptr++ = (char)c);
	return (putc)(c, stream);
}

#undef getc
#define getc(stream) farpage_getc(stream)
#undef getchar
#define getchar() farpage_getc(stdin)
#undef putc
#define putc(c, stream) farpage_putc((c), (stream))
#undef putchar
#define putchar(c) farpage_putc((c), stdout)

#endif
#endif
