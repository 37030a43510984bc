package cause

import (
	"container/list"
	"sync"
)

// Key names a conversation; it is that of package session.
type Key = [16]byte

// maxMessages bounds what a Book remembers: some 20 MB of hashes.
const maxMessages = 1 << 20

// Book remembers the last turn of each conversation. The conversation whose last
// turn is longest ago is forgotten first. The zero Book is not usable; NewBook
// makes one. It is safe for concurrent use.
type Book struct {
	mu sync.Mutex
	// The rest is guarded by mu.
	turns    map[Key]*list.Element // of entry
	order    *list.List            // the latest first
	messages int                   // of all turns, and one for each
}

type entry struct {
	key  Key
	turn Turn
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{turns: map[Key]*list.Element{}, order: list.New()}
}

// Judge names the cause of a conversation's turn and remembers the turn. Turns of
// one conversation that overlap are judged in the order of their ends.
func (b *Book) Judge(k Key, now Turn, c Cache) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.turns[k]
	if e == nil {
		b.turns[k] = b.order.PushFront(&entry{k, now})
		b.grow(now.size())
		return Of(nil, &now, c)
	}
	last := &e.Value.(*entry).turn
	v := Of(last, &now, c)
	grown := now.size() - last.size()
	*last = now
	b.order.MoveToFront(e)
	b.grow(grown)
	return v
}

func (t *Turn) size() int { return 1 + cap(t.Sent.Messages) }

// grow counts and keeps the bound. Callers hold mu.
func (b *Book) grow(n int) {
	for b.messages += n; b.messages > maxMessages && b.order.Len() > 1; {
		oldest := b.order.Remove(b.order.Back()).(*entry)
		delete(b.turns, oldest.key)
		b.messages -= oldest.turn.size()
	}
}
