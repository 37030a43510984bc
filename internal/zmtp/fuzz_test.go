package zmtp

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"
)

// deaf is a connection that takes everything.
type deaf struct{ net.Conn }

func (deaf) Write(b []byte) (int, error) { return len(b), nil }

// Whatever comes, messages are no larger than what came, and the end is an error.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x01\x02kv\x01\x08\x00\x00\x00\x00\x00\x00\x00\x07\x02\x00\x00\x00\x00\x00\x00\x00\x01x"))
	f.Add([]byte("\x04\x0a\x04PING\x00\x1eabc\x00\x01m"))
	f.Add([]byte("\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		c := &Conn{conn: deaf{}, in: bufio.NewReader(bytes.NewReader(wire))}
		size := 0
		for {
			frames, err := c.Receive()
			if err != nil {
				if err == io.EOF && size > len(wire) {
					t.Errorf("%d bytes out of %d", size, len(wire))
				}
				break
			}
			for _, f := range frames {
				size += len(f)
			}
		}
		_, _ = socketOf(wire)
	})
}
