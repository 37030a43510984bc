package enginesim

import (
	"container/heap"
	"strings"
	"testing"
	"time"
)

// world drives a box in virtual time.
type world struct {
	t      testing.TB
	box    *Box
	now    time.Time
	events eventHeap
	order  int
	busy   []bool
	onEmit map[uint64]func(Emit)
	lastID uint64
}

type event struct {
	at    time.Time
	order int // of scheduling, so that equal times keep their order
	do    func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].order < h[j].order
	}
	return h[i].at.Before(h[j].at)
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}

func newWorld(t testing.TB, o BoxOptions) *world {
	t.Helper()
	box, err := NewBox(o)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, box: box, busy: make([]bool, o.Ranks), onEmit: make(map[uint64]func(Emit))}
}

// after does something when so much time has passed.
func (w *world) after(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.events, event{w.now.Add(d), w.order, do})
}

// run lets time pass until nothing is left to happen, or until the given time.
func (w *world) run(until ...time.Time) {
	for len(w.events) > 0 {
		if len(until) > 0 && w.events[0].at.After(until[0]) {
			return
		}
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
}

// submit hands a sequence to the box and returns the rank that it went to.
func (w *world) submit(apiServer, rank int, s Sequence, onEmit func(Emit)) int {
	w.t.Helper()
	w.lastID++
	s.ID = w.lastID
	rank, err := w.box.Submit(w.now, apiServer, rank, &s)
	if err != nil {
		w.t.Fatal(err)
	}
	w.onEmit[s.ID] = onEmit
	// A request and the next one of the same moment reach the engine before its step.
	w.after(0, func() { w.step(rank) })
	return rank
}

func (w *world) step(rank int) {
	if w.busy[rank] {
		return
	}
	took, ok := w.box.Begin(w.now, rank)
	if !ok {
		return
	}
	w.busy[rank] = true
	w.after(took, func() {
		w.busy[rank] = false
		for _, e := range w.box.End(w.now, rank) {
			onEmit := w.onEmit[e.ID]
			if e.Done {
				delete(w.onEmit, e.ID)
			}
			onEmit(e)
		}
		w.after(0, func() { w.step(rank) })
	})
}

// usage is what an answer's usage object says of the prompt.
type usage struct{ Prompt, Cached, Created int }

// ask submits a prompt, lets time pass until everything is over, and returns the
// usage and the rank.
func (w *world) ask(rank int, s Sequence) (usage, int) {
	w.t.Helper()
	var u usage
	rank = w.submit(0, rank, s, func(e Emit) {
		if e.First {
			u = usage{len(s.Prompt), e.Cached, e.Created}
		}
	})
	w.run()
	return u, rank
}

// chat is a conversation whose prompts have given lengths, at one token per byte.
type chat struct {
	seed uint64 // two chats with different seeds share less than a block
	msgs []Message
}

var byteTokens = Tokenizer{BytesPerToken: 1}

// grow adds a user message, so long that the prompt has so many tokens.
func (c *chat) grow(t testing.TB, tokens int) []Token {
	t.Helper()
	c.seed += 1_000
	c.msgs = append(c.msgs, Message{Role: "user"})
	missing := tokens - len(byteTokens.Render(c.msgs, nil, true))
	if missing < 0 {
		t.Fatalf("the prompt cannot be as short as %d tokens", tokens)
	}
	c.msgs[len(c.msgs)-1].Content = byteTokens.Text(missing, c.seed)
	return byteTokens.Render(c.msgs, nil, true)
}

// answer appends an answer and returns what the model generated for it. The
// recorded model's answers are noise, which does not survive its way through
// text: what the client sends back is as long, but other tokens.
func (c *chat) answer(tokens int) []Token {
	c.msgs = append(c.msgs, Message{Role: "assistant", Content: strings.Repeat("?", tokens)})
	return byteTokens.Append(nil, byteTokens.Text(tokens, c.seed+500))
}

func mustPreset(t testing.TB, name string) Params {
	t.Helper()
	p, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
