// Package rawtcp makes the reads and writes of TCP connections cheaper, on Linux:
// they are system calls of which Go's scheduler is not told.
//
// The scheduler expects of any other call that it may block. The first one after a
// moment without work wakes a thread that watches for that every 20 us, and takes the
// processor away from calls that it finds. Go's sockets do not block, and a gateway has
// such a moment after nearly every event of a stream: watching alone took 7% of its CPU
// time. Other calls and collections of memory still wake that thread, which also
// interrupts long computations.
//
// It neither dials nor listens, and knows no protocol.
package rawtcp

import "net"

// Listener makes cheaper what another one accepts.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Wrap(c), nil
}
