package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"lmwarden/internal/zmtp"
)

const (
	eventsAddress = "rank:5557"
	replayAddress = "rank:5657"
)

// publisher is a rank that publishes, over connections in memory. Its test decides
// what is sent on the subscription; a replay is answered from buffer.
type publisher struct {
	t           *testing.T
	subscribers chan *zmtp.Conn

	mu sync.Mutex
	// The rest is guarded by mu.
	end    func()   // of the current subscription
	buffer [][]byte // by sequence number; nil: no longer there
	asked  []uint64 // the replays
	mute   bool     // questions for a replay get no answer
	refuse bool     // connections
}

func (p *publisher) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// cut ends the current subscription.
func (p *publisher) cut() { p.set(func() { p.end() }) }

func newPublisher(t *testing.T) *publisher {
	return &publisher{t: t, subscribers: make(chan *zmtp.Conn, 1)}
}

// dial is the listeners' way to it.
func (p *publisher) dial(ctx context.Context, network, address string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	if address == replayAddress {
		go p.replay(theirs)
		return ours, nil
	}
	p.end = func() { theirs.Close() }
	go func() {
		c, err := zmtp.Handshake(theirs, zmtp.Pub, time.Second)
		if err != nil {
			p.t.Error(err)
			return
		}
		if m, err := c.Receive(); err != nil || len(m) != 1 || string(m[0]) != "\x01" {
			p.t.Errorf("expected a subscription to everything, got %q, %v", m, err)
		}
		p.subscribers <- c
	}()
	return ours, nil
}

func (p *publisher) replay(conn net.Conn) {
	defer conn.Close()
	c, err := zmtp.Handshake(conn, zmtp.Router, time.Second)
	if err != nil {
		p.t.Error(err)
		return
	}
	m, err := c.Receive()
	if err != nil || len(m) != 2 || len(m[0]) != 0 || len(m[1]) != 8 {
		p.t.Errorf("expected a question, got %q, %v", m, err)
		return
	}
	from := binary.BigEndian.Uint64(m[1])
	var buffer [][]byte
	var mute bool
	p.set(func() { p.asked, buffer, mute = append(p.asked, from), p.buffer, p.mute })
	if mute {
		_, _ = c.Receive() // until the other end gives up
		return
	}
	for seq, payload := range buffer {
		if uint64(seq) >= from && payload != nil {
			_ = c.Send(nil, []byte("kv"), number(uint64(seq)), payload)
		}
	}
	_ = c.Send(nil, nil, number(endOfReplay), nil)
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// send publishes a batch.
func (p *publisher) send(c *zmtp.Conn, seq uint64, payload []byte) {
	p.t.Helper()
	if err := c.Send([]byte("kv"), number(seq), payload); err != nil {
		p.t.Error(err)
	}
}

type named = map[string]any

// batch is a batch in the layout since 0.24.
func batch(t *testing.T, events ...any) []byte {
	t.Helper()
	if events == nil {
		events = []any{}
	}
	b, err := msgpack.Marshal([]any{1785000000.25, events, 0})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func storedEvent(hashes ...uint64) named {
	return named{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil,
		"token_ids": make([]int, 16*len(hashes)), "block_size": 16, "medium": "GPU"}
}

func removedEvent(hashes ...uint64) named {
	return named{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
}

// fill puts batches of a block each into the buffer.
func (p *publisher) fill(n int) {
	var all [][]byte
	for i := range n {
		all = append(all, batch(p.t, storedEvent(uint64(i))))
	}
	p.set(func() { p.buffer = all })
}
