package zmtp_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"lmwarden/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = time.Second

// pair greets over a connection in memory.
func pair(t *testing.T, here, there string) (*zmtp.Conn, *zmtp.Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	other := make(chan *zmtp.Conn)
	go func() {
		c, err := zmtp.Handshake(b, there, soon)
		if err != nil {
			t.Error(err)
		}
		other <- c
	}()
	c, err := zmtp.Handshake(a, here, soon)
	if err != nil {
		t.Error(err)
	}
	return c, <-other
}

func TestMessagesArriveAsTheyWereSent(t *testing.T) {
	sub, pub := pair(t, zmtp.Sub, zmtp.Pub)
	messages := [][][]byte{
		{{1}},
		{[]byte("kv"), {0, 0, 0, 0, 0, 0, 0, 7}, bytes.Repeat([]byte("x"), 100_000)},
		{{}, {}, bytes.Repeat([]byte("y"), 255), bytes.Repeat([]byte("z"), 256)},
	}
	go func() {
		for _, m := range messages {
			if err := pub.Send(m...); err != nil {
				t.Error(err)
			}
		}
	}()
	for _, want := range messages {
		got, err := sub.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(want, got, bytes.Equal) {
			t.Errorf("%.100q arrived as %.100q", want, got)
		}
	}
}

// sent is what Receive makes of bytes behind the greeting of a publisher.
func sent(t *testing.T, wire []byte) ([][]byte, []byte, error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	answered := make(chan []byte)
	go func() {
		defer b.Close()
		if _, err := zmtp.Handshake(b, zmtp.Pub, soon); err != nil {
			t.Error(err)
		}
		go b.Write(wire)
		read := make([]byte, 64)
		b.SetReadDeadline(time.Now().Add(soon))
		n, _ := b.Read(read)
		answered <- read[:n]
	}()
	c, err := zmtp.Handshake(a, zmtp.Sub, soon)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Receive()
	a.Close()
	return got, <-answered, err
}

func TestAPingIsAnswered(t *testing.T) {
	got, answer, err := sent(t, []byte("\x04\x0a\x04PING\x00\x1eabc\x00\x01m"))
	if err != nil || len(got) != 1 || string(got[0]) != "m" {
		t.Errorf("received %q, %v", got, err)
	}
	if string(answer) != "\x04\x08\x04PONGabc" {
		t.Errorf("answered %q", answer)
	}
}

func TestWhatAPeerAnnouncesCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, wire := range map[string]string{
			"a frame of 2^63 bytes":  "\x02\x80\x00\x00\x00\x00\x00\x00\x00",
			"frames without an end":  strings.Repeat("\x01\x00", 1000),
			"long frames in numbers": "\x03\x00\x00\x00\x00\x00\x01\x00\x00" + strings.Repeat("x", 1<<16) + "\x02\x00\x00\x00\x00\x01\x00\x00\x00",
		} {
			if got, _, err := sent(t, []byte(wire)); err == nil || !strings.Contains(err.Error(), "more than") {
				t.Errorf("%s: %d frames, %v", name, len(got), err)
			}
		}
		// Announced within the limit, and never sent: the end of the connection ends it.
		a, b := net.Pipe()
		go func() {
			_, _ = zmtp.Handshake(b, zmtp.Pub, soon)
			_, _ = b.Write([]byte("\x02\x00\x00\x00\x00\x00\xff\xff\xff"))
			b.Close()
		}()
		c, err := zmtp.Handshake(a, zmtp.Sub, soon)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Receive(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
		a.Close()
	})
}

func TestAPeerThatIsNoneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hello := func(major byte, mechanism string) string {
			g := [64]byte{0: 0xff, 9: 0x7f, 10: major}
			copy(g[12:], mechanism)
			return string(g[:])
		}
		for says, wire := range map[string]string{
			"does not speak ZeroMQ":     "HTTP/1.1 400 Bad Request" + strings.Repeat(" ", 64),
			"version 2":                 hello(2, ""),
			`mechanism "CURVE"`:         hello(3, "CURVE"),
			"refused":                   hello(3, "NULL") + "\x04\x06\x05ERROR",
			"a message before":          hello(3, "NULL") + "\x00\x01x",
			"is a PULL socket":          hello(3, "NULL") + "\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL",
			"which type of socket":      hello(3, "NULL") + "\x04\x09\x05READY\xff\x00\x00",
			"i/o timeout":               hello(3, "NULL"),
			io.ErrUnexpectedEOF.Error(): "",
		} {
			a, b := net.Pipe()
			go func() {
				go io.Copy(io.Discard, b)
				b.Write([]byte(wire))
				if wire == "" {
					b.Write([]byte{0xff})
					b.Close()
				}
			}()
			_, err := zmtp.Handshake(a, zmtp.Sub, soon)
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("expected %q, got %v", says, err)
			}
			a.Close()
			b.Close()
		}
	})
}
