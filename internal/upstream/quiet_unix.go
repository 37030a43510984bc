//go:build unix

package upstream

import "syscall"

// nothingToRead reports whether a socket has neither bytes nor its end to read.
// A byte that it reads is lost: only a connection for which it holds is of use.
func nothingToRead(c syscall.RawConn) bool {
	var err error
	failed := c.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err = syscall.Read(int(fd), b[:])
		return true
	})
	return failed == nil && (err == syscall.EAGAIN || err == syscall.EWOULDBLOCK)
}
