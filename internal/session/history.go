package session

import (
	"iter"
	"math/bits"

	"lmwarden/internal/llmapi"
)

// maxMarks bounds the look-ups for one request: the newest places of its history
// that can be the end of an earlier request, and the opener.
const maxMarks = 16

// mark is a place in a history at which an earlier request may have ended: before
// an answer, or at the very end.
type mark struct {
	sum   uint64 // of all messages before it
	after uint64 // of all messages including the answer that follows; 0 at the end
}

// history is the chain of a request's messages. The zero history has no marks.
type history struct {
	ring  [maxMarks]mark
	first mark // the opener: before the first answer
	n     int  // marks made; the last maxMarks of them are in ring
	whole uint64
	// answered is set when the history holds an answer of the model.
	answered bool
	messages int // less the empty ones
}

// historyOf hashes the messages into marks. The seed separates tenants, models
// and system texts. No mark is made before the first word of a user, so that two
// histories never meet in what their program says to everybody.
func historyOf(seed uint64, messages []llmapi.Message) history {
	var h history
	sum := seed
	asked, answering := false, false
	for _, m := range messages {
		if m.Empty {
			continue
		}
		h.messages++
		if m.Role == llmapi.RoleAssistant {
			h.answered = true
			if asked && !answering {
				h.push(mark{sum: sum})
			}
			answering = true
		} else {
			answering = false
			asked = asked || m.Role != llmapi.RoleSystem
		}
		sum = mix(sum, m.Hash)
		if answering && h.n > 0 {
			last := &h.ring[(h.n-1)%maxMarks]
			last.after = sum
			if h.n == 1 {
				h.first = *last
			}
		}
	}
	if asked {
		h.whole = sum
		h.push(mark{sum: sum})
	}
	return h
}

func (h *history) push(m mark) {
	if h.n == 0 {
		h.first = m
	}
	h.ring[h.n%maxMarks] = m
	h.n++
}

// marks yields the marks from the longest to the shortest: the newest maxMarks,
// then the opener.
func (h *history) marks() iter.Seq[mark] {
	return func(yield func(mark) bool) {
		oldest := max(0, h.n-maxMarks)
		for i := h.n - 1; i >= oldest; i-- {
			if !yield(h.ring[i%maxMarks]) {
				return
			}
		}
		if oldest > 0 {
			yield(h.first)
		}
	}
}

// mix chains a hash to another, by one product of twice the width: a long history
// has many of them. Its result is never 0, which stands for none.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xff51afd7ed558ccd)
	return max(hi^lo, 1)
}
