package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"lmwarden/internal/zmtp"
)

const (
	// handshakeTimeout bounds the dialling and the greeting, each.
	handshakeTimeout = 10 * time.Second
	// replayTimeout bounds a whole replay. An idle vLLM looks for questions every
	// 100 ms only, and has up to 10,000 batches to send.
	replayTimeout = 30 * time.Second
	// Pauses between attempts to connect double from the first to the last.
	firstPause, lastPause = time.Second, 30 * time.Second
)

// subscriber follows one publisher: one goroutine that dials, reads, and dials
// again.
type subscriber struct {
	from Source
	dial dialFunc
	log  *slog.Logger

	cancel context.CancelFunc
	ended  chan struct{} // closed when the goroutine has ended

	// behind is the first sequence number that the latest replay did not bring; the
	// subscription may bring those before it once more. Of the goroutine alone.
	behind uint64

	mu sync.Mutex
	// The rest is guarded by mu.
	connected  bool
	problem    error // why it is not connected, or the last batch that could not be read
	cache      cache
	next       uint64 // the sequence number to come
	begun      bool   // there was one since the connection
	gaps, lost int64
	last       time.Time // when the last batch came
}

// run follows the publisher until ctx ends.
func (s *subscriber) run(ctx context.Context) {
	defer close(s.ended)
	for pause := firstPause; ; {
		connected, err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if connected {
			pause = firstPause
		}
		s.disconnect(connected, err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// follow reads one connection until it breaks, and says whether there was one.
func (s *subscriber) follow(ctx context.Context) (connected bool, err error) {
	socket, done, err := s.connect(ctx, s.from.Events, zmtp.Sub)
	if err != nil {
		return false, err
	}
	defer done()
	if err := socket.Send([]byte{1}); err != nil { // subscribe to every topic
		return false, err
	}
	s.begin()
	if s.from.Replay != "" {
		s.trouble(ctx, s.replay(ctx, 0))
	}
	for {
		frames, err := socket.Receive()
		if err != nil {
			return true, fmt.Errorf("read KV events of %s: %w", s.from.Events, err)
		}
		seq, payload, err := batchOf(frames)
		if err == nil {
			err = s.live(ctx, seq, payload)
		}
		if err != nil {
			return true, fmt.Errorf("KV events of %s: %w", s.from.Events, err)
		}
	}
}

// connect dials and greets. done must be called in the end; the end of ctx cuts the
// connection.
func (s *subscriber) connect(ctx context.Context, address, socket string) (c *zmtp.Conn, done func(), err error) {
	dialling, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := s.dial(dialling, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to KV events: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	done = func() { stop(); conn.Close() }
	if c, err = zmtp.Handshake(conn, socket, handshakeTimeout); err != nil {
		done()
		return nil, nil, fmt.Errorf("connect to KV events at %s: %w", address, err)
	}
	return c, done, nil
}

// batchOf takes a message apart: a topic, the sequence number, the batch. Replies to
// a replay have an empty frame in front.
func batchOf(frames [][]byte) (seq uint64, payload []byte, err error) {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 {
		return 0, nil, errors.New("a message is no batch: a topic, 8 bytes of sequence number and a payload were expected")
	}
	return binary.BigEndian.Uint64(frames[n-2]), frames[n-1], nil
}

// errAnew ends a connection whose publisher began to count anew, as behind a
// forwarder that did not break.
var errAnew = errors.New("the engine counts its batches anew")

// live books a batch of the subscription, after a replay of what is missing.
func (s *subscriber) live(ctx context.Context, seq uint64, payload []byte) error {
	next := s.expected()
	if seq < next {
		if seq < s.behind {
			return nil // the replay had it
		}
		return errAnew
	}
	if seq > next {
		s.gap()
		if s.from.Replay != "" {
			s.trouble(ctx, s.replay(ctx, next))
			if seq < s.expected() {
				return nil
			}
		}
	}
	s.behind = 0
	s.book(seq, payload)
	return nil
}

// endOfReplay is the sequence number of the reply that is no batch.
const endOfReplay = math.MaxUint64

// replay asks for the batches from a sequence number on that the publisher still
// has, and books them.
func (s *subscriber) replay(ctx context.Context, from uint64) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	socket, done, err := s.connect(ctx, s.from.Replay, zmtp.Dealer)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	defer done()
	err = socket.Send(nil, binary.BigEndian.AppendUint64(nil, from))
	for err == nil {
		var frames [][]byte
		if frames, err = socket.Receive(); err != nil {
			break
		}
		var seq uint64
		var payload []byte
		if seq, payload, err = batchOf(frames); err != nil {
			break
		}
		if seq == endOfReplay {
			s.behind = s.expected()
			return nil
		}
		if seq >= s.expected() {
			s.book(seq, payload)
		}
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %s", replayTimeout)
	}
	s.behind = s.expected() // what came stays
	return fmt.Errorf("replay from %s: %w", s.from.Replay, err)
}

// begin is a new connection.
func (s *subscriber) begin() {
	s.behind = 0
	s.mu.Lock()
	s.connected, s.problem = true, nil
	s.mu.Unlock()
	s.log.Info("listening to KV events", "endpoint", s.from.Events)
}

// disconnect forgets what was cached: an engine that ended has nothing any more, and
// one that did not is replayed.
func (s *subscriber) disconnect(was bool, err error) {
	s.mu.Lock()
	news := was || s.problem == nil // each further attempt says the same
	s.connected, s.problem = false, err
	s.cache.forget()
	s.next, s.begun = 0, false
	s.mu.Unlock()
	if news {
		s.log.Warn("no KV events", "endpoint", s.from.Events, "error", err.Error())
	}
}

// trouble notes what went wrong, if something did; the end of ctx is no trouble.
func (s *subscriber) trouble(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.problem = err
	s.mu.Unlock()
	s.log.Warn("KV events are incomplete", "endpoint", s.from.Events, "error", err.Error())
}

// expected is the sequence number to come.
func (s *subscriber) expected() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// gap counts an interruption. What was before the first batch is none.
func (s *subscriber) gap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun {
		s.gaps++
	}
}

// book takes a batch whose sequence number is at least the expected one.
func (s *subscriber) book(seq uint64, payload []byte) {
	events, err := decode(payload)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if missing := seq - s.next; missing > 0 {
		s.cache.incomplete = true
		if s.begun {
			s.lost += int64(min(missing, 1<<32)) // an engine's nonsense must not overflow
		}
	}
	s.next, s.begun, s.last = seq+1, true, now
	if err != nil {
		s.problem, s.cache.incomplete = err, true
		s.lost++
		return
	}
	s.cache.apply(events, now)
}

func (s *subscriber) view() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	v := View{
		Connected: s.connected, CachedTokens: -1,
		StoredPerSecond: s.cache.stored.perSecond(now), RemovedPerSecond: s.cache.removed.perSecond(now),
		Sequence: -1, Gaps: s.gaps, Lost: s.lost, Age: -1,
	}
	if s.begun {
		v.CachedTokens, v.Blocks, v.Complete = s.cache.tokens, len(s.cache.blocks), !s.cache.incomplete
		v.Sequence = int64(min(s.next-1, math.MaxInt64))
	}
	if !s.last.IsZero() {
		v.Age = now.Sub(s.last)
	}
	if s.problem != nil {
		v.Problem = s.problem.Error()
	}
	return v
}

// dialFunc opens a connection.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)
