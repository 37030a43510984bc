package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"lmwarden/internal/enginesim"
	"lmwarden/internal/zmtp"
)

// What vLLM does with --kv-events-config: each rank publishes what its prefix cache
// takes in and drops, one batch a step, and sends former batches again to who asks.

// KVPort is where a rank publishes its KV events, and where it sends them again.
type KVPort struct{ Events, Replay net.Listener }

// kvBuffer is how many batches can be sent again (buffer_steps).
const kvBuffer = 10_000

// greetTimeout is how long a peer may take to say who it is.
const greetTimeout = 10 * time.Second

// publisher holds the batches of a rank from the start of its process.
type publisher struct {
	rank, blockTokens int
	arrays            bool // the encoding up to 0.23

	mu      sync.Mutex
	batches [][]byte      // guarded by mu: the last kvBuffer ones
	end     uint64        // guarded by mu: the sequence number behind the last
	more    chan struct{} // guarded by mu: closed when there is another
}

func newPublisher(rank, blockTokens int, v version) *publisher {
	return &publisher{rank: rank, blockTokens: blockTokens, arrays: !v.atLeast(0, 24), more: make(chan struct{})}
}

// publish makes a batch of the events of a step, if there are any.
func (p *publisher) publish(events []enginesim.KVEvent) {
	if len(events) == 0 {
		return
	}
	payload := p.encode(time.Now(), events)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.batches) == kvBuffer {
		p.batches = p.batches[1:]
	}
	p.batches = append(p.batches, payload)
	p.end++
	close(p.more)
	p.more = make(chan struct{})
}

// from returns the batches from a sequence number on that are still there, the number
// of the first, and what is closed when there is another.
func (p *publisher) from(seq uint64) (batches [][]byte, first uint64, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first = min(max(seq, p.end-uint64(len(p.batches))), p.end)
	return p.batches[uint64(len(p.batches))-(p.end-first):], first, p.more
}

// serve answers on a port until ctx ends, closes it, and returns when the last
// connection has ended.
func (p *publisher) serve(ctx context.Context, port KVPort) {
	var all sync.WaitGroup
	accept := func(l net.Listener, talk func(context.Context, net.Conn)) {
		stop := context.AfterFunc(ctx, func() { l.Close() })
		defer stop()
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			all.Go(func() {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				talk(ctx, conn)
			})
		}
	}
	all.Go(func() { accept(port.Events, p.subscription) })
	all.Go(func() { accept(port.Replay, p.replays) })
	<-ctx.Done()
	all.Wait()
}

// subscription sends batches from now on. Like a PUB socket it drops what a slow
// subscriber does not take, here beyond the buffer.
func (p *publisher) subscription(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	c, err := zmtp.Handshake(conn, zmtp.Pub, greetTimeout)
	if err != nil {
		return
	}
	if m, err := c.Receive(); err != nil || len(m) != 1 || len(m[0]) == 0 || m[0][0] != 1 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var gone sync.WaitGroup
	defer gone.Wait()
	defer conn.Close()
	gone.Go(func() {
		defer cancel()
		for {
			if _, err := c.Receive(); err != nil {
				return
			}
		}
	})
	_, next, _ := p.from(math.MaxUint64)
	for {
		batches, first, more := p.from(next)
		for i, payload := range batches {
			if c.Send(nil, seqFrame(first+uint64(i)), payload) != nil {
				return
			}
		}
		next = first + uint64(len(batches))
		if len(batches) > 0 {
			continue // there may be more by now
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}

// replays answers questions, each with a start, as a ROUTER socket does.
func (p *publisher) replays(_ context.Context, conn net.Conn) {
	defer conn.Close()
	c, err := zmtp.Handshake(conn, zmtp.Router, greetTimeout)
	for err == nil {
		var m [][]byte
		if m, err = c.Receive(); err != nil || len(m) != 2 || len(m[1]) != 8 {
			return
		}
		batches, first, _ := p.from(binary.BigEndian.Uint64(m[1]))
		for i, payload := range batches {
			if err = c.Send(nil, nil, seqFrame(first+uint64(i)), payload); err != nil {
				return
			}
		}
		err = c.Send(nil, nil, seqFrame(math.MaxUint64), nil)
	}
}

func seqFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// kvField is a field of an event, in the order of the older encoding.
type kvField struct {
	name  string
	value any
}

// encode makes the batch. Writing values of these kinds into memory cannot fail.
func (p *publisher) encode(now time.Time, events []enginesim.KVEvent) []byte {
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	_ = e.EncodeArrayLen(3)
	_ = e.EncodeFloat64(float64(now.UnixMicro()) / 1e6)
	_ = e.EncodeArrayLen(len(events))
	for _, event := range events {
		fields := p.fields(event)
		if p.arrays {
			_ = e.EncodeArrayLen(len(fields))
		} else {
			_ = e.EncodeMapLen(len(fields))
		}
		for _, f := range fields {
			if !p.arrays {
				_ = e.EncodeString(f.name)
			}
			_ = e.Encode(f.value)
		}
	}
	_ = e.EncodeInt(int64(p.rank))
	return b.Bytes()
}

func (p *publisher) fields(e enginesim.KVEvent) []kvField {
	const medium, group = "GPU", 0
	switch e.Kind {
	case enginesim.BlocksStored:
		var parent any
		if e.Parent != 0 {
			parent = e.Parent
		}
		ids := make([]uint32, len(e.Tokens)) // a real vocabulary is small
		for i, t := range e.Tokens {
			ids[i] = uint32(t) & 0xffff
		}
		return []kvField{
			{"type", "BlockStored"}, {"block_hashes", e.Blocks}, {"parent_block_hash", parent}, {"token_ids", ids},
			{"block_size", p.blockTokens}, {"lora_id", nil}, {"medium", medium}, {"lora_name", nil},
			{"extra_keys", make([]any, len(e.Blocks))}, {"group_idx", group},
		}
	case enginesim.BlocksRemoved:
		return []kvField{{"type", "BlockRemoved"}, {"block_hashes", e.Blocks}, {"medium", medium}, {"group_idx", group}}
	}
	return []kvField{{"type", "AllBlocksCleared"}}
}

// publishKV serves the KV ports of a process until it ends; the returned function
// waits for that. A later process takes the same addresses.
func (s *Server) publishKV(ctx context.Context, p *process) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for rank, pub := range p.engine.kv {
		if rank >= len(s.kvPorts) {
			break // a process that came back with more ranks
		}
		all.Go(func() {
			if port, ok := s.kvPort(ctx, rank); ok {
				pub.serve(ctx, port)
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// kvPort are the listeners of a rank: those that were given, or later their like.
func (s *Server) kvPort(ctx context.Context, rank int) (KVPort, bool) {
	given := s.kvPorts[rank]
	if s.kvTaken[rank].CompareAndSwap(false, true) {
		return given, true
	}
	events, _ := s.listenAgain(ctx, given.Events.Addr())
	replay, _ := s.listenAgain(ctx, given.Replay.Addr())
	if events != nil && replay != nil {
		return KVPort{events, replay}, true
	}
	for _, l := range []net.Listener{events, replay} {
		if l != nil {
			l.Close()
		}
	}
	return KVPort{}, false
}
