package rawtcp

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Wrap is the connection with cheaper reads and writes if it is a *net.TCPConn, and
// the connection itself if it is anything else. The wrapped one is used no more.
func Wrap(c net.Conn) net.Conn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}
	w := &conn{TCPConn: t, raw: raw}
	w.in.try, w.out.try = w.in.read, w.out.write // once, since each use of a method as a value allocates
	return w
}

// Write writes both pieces, as one where the connection is a wrapped one.
func Write(c net.Conn, head, body []byte) error {
	if w, ok := c.(*conn); ok {
		_, err := w.write(head, body)
		return err
	}
	pieces := net.Buffers{head, body}
	_, err := pieces.WriteTo(c)
	return err
}

// Quiet reports whether a wrapped connection has neither bytes nor its end to read;
// of others it is not known and taken to be so. A byte that was there is lost: only a
// connection that is quiet is of further use.
func Quiet(c net.Conn) bool {
	w, ok := c.(*conn)
	return !ok || w.quiet()
}

type conn struct {
	*net.TCPConn
	raw syscall.RawConn // calls back while the socket is ready, and waits between
	in  reading
	out writing
}

// reading is one Read.
type reading struct {
	mu     sync.Mutex // held for the whole of it
	p      []byte
	glance bool    // it does not wait
	one    [1]byte // for a glance
	n      int
	err    syscall.Errno
	try    func(fd uintptr) (done bool)
}

func (r *reading) read(fd uintptr) (done bool) {
	for {
		n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&r.p[0])), uintptr(len(r.p)))
		if err == syscall.EINTR {
			continue
		}
		if r.err = err; err == 0 {
			r.n = int(n)
		}
		return err != syscall.EAGAIN || r.glance
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r := &c.in
	r.mu.Lock()
	defer r.mu.Unlock()
	r.p, r.n = p, 0
	err := c.raw.Read(r.try)
	r.p = nil
	switch {
	case err != nil:
		return 0, c.of("read", err)
	case r.err != 0:
		return 0, c.of("read", os.NewSyscallError("read", r.err))
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

func (c *conn) quiet() bool {
	r := &c.in
	r.mu.Lock()
	defer r.mu.Unlock()
	r.p, r.glance = r.one[:], true
	err := c.raw.Read(r.try)
	r.p, r.glance = nil, false
	return err == nil && r.err == syscall.EAGAIN
}

// writing is one Write.
type writing struct {
	mu   sync.Mutex // held for the whole of it
	left [2][]byte
	n    int
	err  syscall.Errno
	try  func(fd uintptr) (done bool)
}

func (w *writing) write(fd uintptr) (done bool) {
	for {
		var pieces [len(w.left)]syscall.Iovec
		count := 0
		for _, p := range w.left {
			if len(p) > 0 {
				pieces[count].Base = &p[0]
				pieces[count].SetLen(len(p))
				count++
			}
		}
		if count == 0 {
			return true
		}
		n, _, err := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&pieces)), uintptr(count))
		switch err {
		case 0:
			w.n += int(n)
			for i, p := range w.left {
				gone := min(int(n), len(p))
				w.left[i], n = p[gone:], n-uintptr(gone)
			}
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			w.err = err
			return true
		}
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) { return c.write(nil, p) }

func (c *conn) write(head, body []byte) (int, error) {
	w := &c.out
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left, w.n, w.err = [...][]byte{head, body}, 0, 0
	err := c.raw.Write(w.try)
	clear(w.left[:])
	switch {
	case err != nil:
		return w.n, c.of("write", err)
	case w.err != 0:
		return w.n, c.of("write", os.NewSyscallError("write", w.err))
	}
	return w.n, nil
}

// of makes an error what it would be of a *net.TCPConn.
func (c *conn) of(op string, err error) error {
	if of, ok := err.(*net.OpError); ok { // of the waiting
		err = of.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
