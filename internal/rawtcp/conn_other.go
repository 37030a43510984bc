//go:build !linux

package rawtcp

import "net"

// Wrap is the connection itself.
func Wrap(c net.Conn) net.Conn { return c }

// Write writes both pieces.
func Write(c net.Conn, head, body []byte) error {
	pieces := net.Buffers{head, body}
	_, err := pieces.WriteTo(c)
	return err
}

// Quiet says of a connection, of which it is not known, that it has nothing to read.
func Quiet(net.Conn) bool { return true }
