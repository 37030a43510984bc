package cause

import (
	"container/list"
	"hash/maphash"

	"lmwarden/internal/llmapi"
)

// Key names a conversation; it is that of package session.
type Key = [16]byte

// maxBytes bounds what a Book remembers: a conversation of 300 kB in 200 messages
// takes some 30 kB.
const maxBytes = 64 << 20

// Book remembers the last turn of each conversation. The conversation whose last
// turn is longest ago is forgotten first. The zero Book is not usable; NewBook
// makes one. It is not safe for concurrent use; a Desk owns one.
type Book struct {
	turns map[Key]*list.Element // of *entry
	order *list.List            // the latest first
	bytes int                   // of all entries
	count int64                 // turns ever judged
	seed  maphash.Seed          // of the hashes that readings are made of
}

type entry struct {
	key    Key
	turn   Turn
	number int64 // of the turn
	bytes  int
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{turns: map[Key]*list.Element{}, order: list.New(), seed: maphash.MakeSeed()}
}

// Read reads the body of a turn that will be judged, and whose facts are f, for the
// place at which it differs from the turn before. It keeps nothing of the body.
func (b *Book) Read(k Key, f *llmapi.Facts, body []byte) *Reading {
	r := &Reading{}
	b.read(r, k, f, body)
	return r
}

func (b *Book) read(r *Reading, k Key, f *llmapi.Facts, body []byte) {
	var last *Turn
	if e := b.turns[k]; e != nil {
		last, r.since = &e.Value.(*entry).turn, e.Value.(*entry).number
	}
	read(r, last, f, body, b.seed)
}

// Judge names the cause of a conversation's turn and remembers the turn. Turns of
// one conversation that overlap are judged in the order of their ends.
func (b *Book) Judge(k Key, now Turn, c Cache) Verdict {
	var last *Turn
	e := b.turns[k]
	if e == nil {
		e = b.order.PushFront(&entry{key: k})
		b.turns[k] = e
	} else {
		last = &e.Value.(*entry).turn
	}
	v := Of(last, &now, c)
	at := e.Value.(*entry)
	if r := now.Sent.Read; r != nil && v.At.Part != "" && r.since == at.number && r.at.Part == v.At.Part && r.at.Message == v.At.Message {
		v.At = r.at
	}
	b.count++
	b.bytes -= at.bytes
	at.turn, at.number, at.bytes = now, b.count, now.size()
	b.bytes += at.bytes
	b.order.MoveToFront(e)
	for b.bytes > maxBytes && b.order.Len() > 1 {
		oldest := b.order.Remove(b.order.Back()).(*entry)
		delete(b.turns, oldest.key)
		b.bytes -= oldest.bytes
	}
	return v
}

// size is what an entry takes in bytes.
func (t *Turn) size() int {
	const entry, message = 400, 16 // with its places in list and map
	return entry + message*cap(t.Sent.Messages) + t.Sent.Read.size()
}
