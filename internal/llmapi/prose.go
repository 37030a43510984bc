package llmapi

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// headChars is how much of the system text SystemHead covers.
const headChars = 4096

// prose is what normalisation keeps of a text, or of the parts of a message, as
// a running hash.
type prose struct {
	hash  uint64
	parts int
	size  int // bytes of text, dropped blocks included

	head     uint64 // as hash, but of the first characters only
	headLeft int    // characters that head still takes
}

// partKind tells the parts of a message apart in its hash.
type partKind uint64

const (
	partText partKind = iota + 1
	partCall
	partResult
	partOther
)

func (p *prose) add(kind partKind, hash uint64) {
	p.hash = fold(fold(p.hash, uint64(kind)), hash)
	p.parts++
}

// join adds what another prose holds as one part of text, if it holds anything.
func (p *prose) join(q *prose) {
	p.size += q.size
	if q.parts == 0 {
		return
	}
	p.add(partText, q.hash)
	if p.headLeft > 0 {
		p.head, p.headLeft = fold(p.head, q.head), q.headLeft
	}
}

// droppedTags enclose what clients put into messages and change or take away in
// later turns: reminders, the time, the state of an editor.
var droppedTags = [...]struct{ open, close string }{
	{"<system-reminder>", "</system-reminder>"},
	{"<environment_details>", "</environment_details>"},
	{"<current_datetime>", "</current_datetime>"},
	{"<session_context>", "</session_context>"},
}

// droppedTag returns which of the tags opens here, or -1.
func droppedTag(text []byte) int {
	for i := range droppedTags {
		// Most angle brackets are told from a tag by the next byte.
		if tag := droppedTags[i].open; len(text) > 1 && text[1] == tag[1] && bytes.HasPrefix(text, []byte(tag)) {
			return i
		}
	}
	return -1
}

// addProse adds text in canonical form without its dropped blocks. A block that
// is not closed is text. It returns the hash of all of the text.
func (p *prose) addProse(text []byte) uint64 {
	p.size += len(text)
	var unclosed [len(droppedTags)]bool // nothing closes it from here on, which keeps the search linear
	from := 0                           // of the text not yet added
	for at := 0; ; {
		n := bytes.IndexByte(text[at:], '<')
		if n < 0 {
			break
		}
		at += n
		i := droppedTag(text[at:])
		if i < 0 || unclosed[i] {
			at++
			continue
		}
		n = bytes.Index(text[at:], []byte(droppedTags[i].close))
		if n < 0 {
			unclosed[i] = true
			continue
		}
		p.addText(text[from:at])
		at += n + len(droppedTags[i].close)
		from = at
	}
	hash, start, end := p.addText(text[from:])
	switch {
	case from > 0:
		return xxhash.Sum64(text)
	case start > 0 || end < len(text): // most of it is hashed: that is enough
		return fold(fold(hash, xxhash.Sum64(text[:start])), xxhash.Sum64(text[end:]))
	}
	return hash
}

// addText adds a piece of text that has no dropped blocks, less the white space
// around it. It returns the hash of what it added, and where that stands.
func (p *prose) addText(text []byte) (hash uint64, start, end int) {
	room := cap(text)
	text = trimSpace(text)
	// Claude Code's billing line stands before its system text. Parts of it change
	// with every request of some versions, and engines drop it.
	if bytes.HasPrefix(text, attribution) {
		_, text, _ = bytes.Cut(text, []byte(`\n`))
		text = trimSpace(text)
	}
	if len(text) == 0 {
		return 0, 0, 0
	}
	start = room - cap(text)
	end = start + len(text)
	hash = xxhash.Sum64(text)
	p.add(partText, hash)
	if p.headLeft > 0 {
		cut, chars := firstChars(text, p.headLeft)
		p.headLeft -= chars
		p.head = fold(p.head, xxhash.Sum64(text[:cut]))
	}
	return hash, start, end
}

// firstChars is how many bytes the first n characters take, and how many there are.
func firstChars(text []byte, n int) (size, chars int) {
	for chars < n && size < len(text) {
		if n-chars >= 8 && len(text)-size >= 8 && binary.LittleEndian.Uint64(text[size:])&highs == 0 {
			size += 8
			chars += 8
			continue
		}
		_, width := utf8.DecodeRune(text[size:])
		size += width
		chars++
	}
	return size, chars
}

// trimSpace trims white space off a text in canonical form, where most of it is
// written as escapes.
func trimSpace(text []byte) []byte {
	for {
		switch {
		case len(text) >= 1 && text[0] == ' ':
			text = text[1:]
		case len(text) >= 2 && text[0] == '\\' && isSpaceEscape(text[1]):
			text = text[2:]
		default:
			for {
				n := len(text)
				switch {
				case n >= 1 && text[n-1] == ' ':
					text = text[:n-1]
				case n >= 2 && isSpaceEscape(text[n-1]) && trailingSlashes(text[:n-1])%2 == 1:
					text = text[:n-2]
				default:
					return text
				}
			}
		}
	}
}

func isSpaceEscape(c byte) bool { return c == 'n' || c == 't' || c == 'r' }

// trailingSlashes counts the backslashes that b ends with.
func trailingSlashes(b []byte) int {
	n := 0
	for n < len(b) && b[len(b)-n-1] == '\\' {
		n++
	}
	return n
}
