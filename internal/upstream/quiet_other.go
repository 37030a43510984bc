//go:build !unix

package upstream

import "syscall"

// nothingToRead does not look: the next answer will tell.
func nothingToRead(syscall.RawConn) bool { return true }
