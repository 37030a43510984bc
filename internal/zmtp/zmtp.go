// Package zmtp speaks ZeroMQ's wire protocol, ZMTP 3.0 with the mechanism NULL
// (rfc.zeromq.org/spec/23), over one connection: the greeting and messages of several
// frames. It dials nothing, starts nothing and never connects again by itself: that
// is its user's job, who knows when.
//
// It is no ZeroMQ: there are no sockets with queues here, no patterns, no
// authentication. What the peer sends can cost no more than MaxMessage bytes. That,
// and no goroutine that outlives its use, is why it stands here: go-zeromq/zmq4, with
// which tests compare it, allocates what a frame announces, so that a peer could end
// the process.
package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// Types of sockets that this project plays or meets.
const (
	Pub    = "PUB"
	Sub    = "SUB"
	Dealer = "DEALER"
	Router = "ROUTER"
)

// peers are the types that a socket may be connected with.
var peers = map[string][]string{
	Pub: {Sub, "XSUB"}, Sub: {Pub, "XPUB"},
	Dealer: {Dealer, Router, "REP"}, Router: {Dealer, Router, "REQ"},
}

// MaxMessage bounds the frames of one message together, in bytes. A batch of KV
// events of the largest step of an engine takes a few hundred kilobytes.
const MaxMessage = 16 << 20

// maxFrames bounds the frames of one message, which may be empty ones.
const maxFrames = 64

// Flags of a frame.
const (
	more    = 1
	long    = 2
	command = 4
)

// Conn is a connection whose greeting is done. One goroutine may send while
// another receives.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader
}

// Handshake greets the peer as a socket of the given type, within the timeout. It
// is the same for both ends. It does not close the connection when it fails.
func Handshake(conn net.Conn, socket string, timeout time.Duration) (*Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	c := &Conn{conn: conn, in: bufio.NewReader(conn)}
	if err := c.greet(socket); err != nil {
		return nil, fmt.Errorf("greet as a ZeroMQ socket: %w", err)
	}
	return c, conn.SetDeadline(time.Time{})
}

const greetingLength = 64

// greet exchanges greetings, and the READY commands of the mechanism NULL. Each is
// sent beside the reading: both ends may wait for the other's before they read on.
func (c *Conn) greet(socket string) error {
	greeting := [greetingLength]byte{0: 0xff, 9: 0x7f, 10: 3}
	copy(greeting[12:], "NULL")
	sent := make(chan error, 1)
	go func() {
		_, err := c.conn.Write(greeting[:])
		if err == nil {
			err = c.write([][]byte{readyCommand(socket)}, command)
		}
		sent <- err
	}()
	err := c.greeted(socket)
	if err != nil {
		c.conn.SetWriteDeadline(time.Unix(1, 0)) // the sender gives up
	}
	return errors.Join(err, <-sent)
}

func (c *Conn) greeted(socket string) error {
	var greeting [greetingLength]byte
	if _, err := io.ReadFull(c.in, greeting[:]); err != nil {
		return err
	}
	mechanism, _, _ := bytes.Cut(greeting[12:32], []byte{0})
	switch {
	case greeting[0] != 0xff || greeting[9] != 0x7f:
		return errors.New("the peer does not speak ZeroMQ's protocol")
	case greeting[10] < 3:
		return fmt.Errorf("the peer speaks version %d of ZeroMQ's protocol; at least 3 is needed, ZeroMQ 4", greeting[10])
	case string(mechanism) != "NULL":
		return fmt.Errorf("the peer asks for the mechanism %q; only NULL is known here", mechanism)
	}
	frames, flags, err := c.read()
	if err != nil {
		return err
	}
	if flags&command == 0 || len(frames) != 1 {
		return errors.New("the peer sent a message before it was ready")
	}
	other, err := socketOf(frames[0])
	if err == nil && !slices.Contains(peers[socket], other) {
		err = fmt.Errorf("the peer is a %s socket; expected was one of %v", other, peers[socket])
	}
	return err
}

const socketProperty = "Socket-Type"

// readyCommand is the command READY with the one property that must be there.
func readyCommand(socket string) []byte {
	b := append([]byte{5}, "READY"...)
	b = append(b, byte(len(socketProperty)))
	b = append(b, socketProperty...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(socket)))
	return append(b, socket...)
}

// socketOf reads the peer's READY command.
func socketOf(body []byte) (string, error) {
	name, properties, ok := cut(body, 1)
	if !ok || string(name) != "READY" {
		return "", fmt.Errorf("the peer refused: %q", body[:min(len(body), 80)])
	}
	for len(properties) > 0 {
		var key, value []byte
		if key, properties, ok = cut(properties, 1); !ok {
			break
		}
		if value, properties, ok = cut(properties, 4); !ok {
			break
		}
		if string(bytes.ToLower(key)) == "socket-type" {
			return string(value), nil
		}
	}
	return "", errors.New("the peer does not say which type of socket it is")
}

// cut takes a string off b that has its length in front, of one or four bytes.
func cut(b []byte, lengthBytes int) (s, rest []byte, ok bool) {
	if len(b) < lengthBytes {
		return nil, nil, false
	}
	n := uint64(b[0])
	if lengthBytes == 4 {
		n = uint64(binary.BigEndian.Uint32(b))
	}
	b = b[lengthBytes:]
	if n > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

// Send sends one message of at least one frame.
func (c *Conn) Send(frames ...[]byte) error { return c.write(frames, 0) }

func (c *Conn) write(frames [][]byte, flags byte) error {
	var b []byte
	for i, f := range frames {
		flag := flags
		if i < len(frames)-1 {
			flag |= more
		}
		if len(f) > 255 {
			b = binary.BigEndian.AppendUint64(append(b, flag|long), uint64(len(f)))
		} else {
			b = append(b, flag, byte(len(f)))
		}
		b = append(b, f...)
	}
	_, err := c.conn.Write(b)
	return err
}

// Receive returns the frames of the next message. The end of the connection
// between two messages is io.EOF. A connection on which it failed is of no more
// use.
func (c *Conn) Receive() ([][]byte, error) {
	for {
		frames, flags, err := c.read()
		if err != nil {
			return nil, err
		}
		if flags&command == 0 {
			return frames, nil
		}
		// Of the commands only PING asks for an answer: its context, which follows a
		// time to live of two bytes.
		if name, rest, ok := cut(frames[0], 1); ok && string(name) == "PING" {
			pong := append([]byte{4}, "PONG"...)
			if err := c.write([][]byte{append(pong, rest[min(len(rest), 2):]...)}, command); err != nil {
				return nil, err
			}
		}
	}
}

// read returns the frames of a message, or the one of a command, and the flags of
// the last.
func (c *Conn) read() (frames [][]byte, flags byte, err error) {
	left := uint64(MaxMessage)
	for {
		if flags, err = c.in.ReadByte(); err != nil {
			if len(frames) > 0 {
				err = unexpected(err)
			}
			return nil, 0, err
		}
		size, err := c.length(flags)
		if err != nil {
			return nil, 0, unexpected(err)
		}
		if size > left || len(frames) == maxFrames {
			return nil, 0, fmt.Errorf("a message of the peer has more than %d bytes or %d frames", MaxMessage, maxFrames)
		}
		left -= size
		// Grows with what comes, not with what the peer announces.
		var body bytes.Buffer
		if _, err := io.CopyN(&body, c.in, int64(size)); err != nil {
			return nil, 0, unexpected(err)
		}
		frames = append(frames, body.Bytes())
		if flags&more == 0 {
			return frames, flags, nil
		}
	}
}

func (c *Conn) length(flags byte) (uint64, error) {
	if flags&long == 0 {
		n, err := c.in.ReadByte()
		return uint64(n), err
	}
	var b [8]byte
	_, err := io.ReadFull(c.in, b[:])
	return binary.BigEndian.Uint64(b[:]), err
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
