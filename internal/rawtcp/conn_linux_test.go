package rawtcp_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lmwarden/internal/rawtcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is an accepted connection and its other end.
func pair(t testing.TB, accept func(net.Listener) (net.Conn, error)) (accepted net.Conn, other *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if accepted, err = accept(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close(); dialled.Close() })
	return accepted, dialled.(*net.TCPConn)
}

func wrapped(l net.Listener) (net.Conn, error) { return rawtcp.Listener{Listener: l}.Accept() }

func TestBytesPassBothWaysWhole(t *testing.T) {
	c, other := pair(t, wrapped)
	head, body := []byte("head "), bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // more than sockets hold
	sent := make(chan error, 1)
	go func() {
		sent <- errors.Join(rawtcp.Write(c, head, body), c.(interface{ CloseWrite() error }).CloseWrite())
	}()
	got, err := io.ReadAll(other)
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, append(head, body...)) {
		t.Fatalf("%d bytes came, not the %d that were sent", len(got), len(head)+len(body))
	}

	go func() {
		_, err := other.Write(body)
		sent <- errors.Join(err, other.CloseWrite())
	}()
	got, err = io.ReadAll(c) // to io.EOF
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, body) {
		t.Fatalf("%d bytes came back, not the %d that were sent", len(got), len(body))
	}
}

func TestConcurrentWritesDoNotMix(t *testing.T) {
	c, other := pair(t, wrapped)
	const writers, size = 4, 1 << 20
	done := make(chan error, writers)
	for i := range writers {
		go func() {
			n, err := c.Write(bytes.Repeat([]byte{byte('a' + i)}, size))
			if err == nil && n != size {
				err = io.ErrShortWrite
			}
			done <- err
		}()
	}
	got := make([]byte, writers*size)
	if _, err := io.ReadFull(other, got); err != nil {
		t.Fatal(err)
	}
	for range writers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for i := range writers {
		part := got[i*size : (i+1)*size]
		if !bytes.Equal(part, bytes.Repeat(part[:1], size)) {
			t.Fatalf("the bytes of several writes are mixed in part %d", i)
		}
	}
}

// Whoever looks at errors finds the same ones as on the connection within.
func TestErrorsAreThoseOfTheNetwork(t *testing.T) {
	read := func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }
	fill := func(c net.Conn) (err error) {
		for err == nil {
			_, err = c.Write(make([]byte, 1<<20))
		}
		return err
	}
	tests := []struct {
		name string
		do   func(c net.Conn, other *net.TCPConn) error
		want error
	}{
		{"read deadline", func(c net.Conn, _ *net.TCPConn) error {
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			return read(c)
		}, os.ErrDeadlineExceeded},
		{"write deadline", func(c net.Conn, _ *net.TCPConn) error {
			c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			return fill(c)
		}, os.ErrDeadlineExceeded},
		{"closed before a read", func(c net.Conn, _ *net.TCPConn) error { c.Close(); return read(c) }, net.ErrClosed},
		{"closed before a write", func(c net.Conn, _ *net.TCPConn) error { c.Close(); return fill(c) }, net.ErrClosed},
		{"closed within a read", func(c net.Conn, other *net.TCPConn) error {
			other.Write([]byte("x"))
			read(c)
			failed := make(chan error)
			go func() { failed <- read(c) }()
			c.Close()
			return <-failed
		}, net.ErrClosed},
		{"reset", func(c net.Conn, other *net.TCPConn) error {
			other.SetLinger(0)
			other.Close()
			return read(c)
		}, syscall.ECONNRESET},
		{"the end", func(c net.Conn, other *net.TCPConn) error { other.CloseWrite(); return read(c) }, io.EOF},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var texts [2]string // wrapped and not
			for i, accept := range []func(net.Listener) (net.Conn, error){wrapped, net.Listener.Accept} {
				c, other := pair(t, accept)
				err := test.do(c, other)
				if !errors.Is(err, test.want) {
					t.Fatalf("the error is %v, not %v", err, test.want)
				}
				var ne net.Error
				timeout := errors.As(err, &ne) && ne.Timeout()
				if want := test.want == os.ErrDeadlineExceeded; timeout != want {
					t.Errorf("it says that it is a timeout: %v", timeout)
				}
				var op *net.OpError
				if errors.As(err, &op) {
					texts[i] = op.Op + " " + op.Net + ": " + op.Err.Error()
				}
			}
			if texts[0] != texts[1] {
				t.Errorf("it reads %q instead of %q", texts[0], texts[1])
			}
		})
	}
}

func TestQuiet(t *testing.T) {
	heard := func(c net.Conn, what func()) {
		t.Helper()
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		what()
		// Waits until there is something to read, and leaves it there.
		if err := raw.Read(func(fd uintptr) bool {
			_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
			return err != syscall.EAGAIN
		}); err != nil {
			t.Fatal(err)
		}
	}
	c, other := pair(t, wrapped)
	for range 2 {
		if !rawtcp.Quiet(c) {
			t.Error("a connection without bytes is not quiet")
		}
	}
	heard(c, func() { other.Write([]byte("x")) })
	if rawtcp.Quiet(c) {
		t.Error("a connection with a byte is quiet")
	}
	heard(c, func() { other.CloseWrite() })
	if rawtcp.Quiet(c) {
		t.Error("a connection at its end is quiet")
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a read at the end says %v", err)
	}

	pipe, end := net.Pipe()
	defer pipe.Close()
	defer end.Close()
	if rawtcp.Wrap(pipe) != pipe || !rawtcp.Quiet(pipe) {
		t.Error("what is no TCP connection is changed, or thought to have bytes")
	}
}

func TestReadAndWriteAllocateNothing(t *testing.T) {
	c, other := pair(t, wrapped)
	b := make([]byte, 8)
	if n := testing.AllocsPerRun(100, func() {
		c.Write(b)
		io.ReadFull(other, b)
		other.Write(b)
		io.ReadFull(c, b)
		rawtcp.Quiet(c)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkAnEvent sends an event to a relay that was idle and waits for its echo,
// over plain connections and over wrapped ones, in turns. The CPU time is that of the
// process, both ends included.
func BenchmarkAnEvent(b *testing.B) {
	var cpu [2]time.Duration
	var ends [2]net.Conn
	for i, wrap := range []func(net.Conn) net.Conn{func(c net.Conn) net.Conn { return c }, rawtcp.Wrap} {
		relay, other := pair(b, net.Listener.Accept)
		relay, ends[i] = wrap(relay), wrap(other)
		go io.Copy(struct{ io.Writer }{relay}, struct{ io.Reader }{relay}) // without the kernel's own ways
	}
	const together = 100
	event := make([]byte, 200)
	for n := 0; b.Loop(); n++ {
		i := n / together % 2
		before := cpuTime(b)
		if _, err := ends[i].Write(event); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(ends[i], event); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		cpu[i] += cpuTime(b) - before
	}
	b.ReportMetric(float64(cpu[0].Microseconds())/float64(b.N)*2, "plain-us")
	b.ReportMetric(float64(cpu[1].Microseconds())/float64(b.N)*2, "wrapped-us")
	b.ReportMetric(float64(cpu[1])/float64(cpu[0]), "x")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
