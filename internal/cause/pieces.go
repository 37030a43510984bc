package cause

import (
	"hash/maphash"

	"lmwarden/internal/llmapi"
)

// leafBytes is the length of the shortest pieces, mostPieces how many are kept of
// one text: those of a longer text are longer.
const (
	leafBytes  = 64
	mostPieces = 64
)

// pieces are hashes of the pieces of a text in order, of 1<<shift leaves each. Each
// of the values in which a text stands begins with a leaf of its own, so that one
// more or less of them is seen where it begins.
type pieces struct {
	shift uint8
	sums  []uint32
}

// cut cuts a text into pieces few enough to be kept.
func cut(seed maphash.Seed, body []byte, text []llmapi.Text) pieces {
	shift := uint8(0)
	for n := leaves(text...); n > mostPieces<<shift; {
		shift++
	}
	return cutAt(shift, seed, body, text)
}

func cutAt(shift uint8, seed maphash.Seed, body []byte, text []llmapi.Text) pieces {
	sums := make([]uint32, 0, (leaves(text...)+1<<shift-1)>>shift)
	size := leafBytes << shift
	left, sum := size, uint64(0) // of the piece at hand
	for _, t := range text {
		for at, end := int(t.From), int(t.To); at < end; {
			part := min(left, end-at)
			// What is joined is multiplied with the golden ratio, so that order counts.
			sum = (sum + maphash.Bytes(seed, body[at:at+part])) * 0x9e3779b97f4a7c15
			at += part
			if left = (left - part) &^ (leafBytes - 1); left == 0 { // in whole leaves
				sums = append(sums, uint32(sum>>32))
				left, sum = size, 0
			}
		}
	}
	if left < size {
		sums = append(sums, uint32(sum>>32))
	}
	return pieces{shift, sums}
}

// leaves is how many leaves a text has.
func leaves(text ...llmapi.Text) (n int) {
	for _, t := range text {
		n += (int(t.To-t.From) + leafBytes - 1) / leafBytes
	}
	return n
}

// begin is where a leaf of a text begins in the body, or where the text ends if it
// has no such leaf.
func begin(leaf int, text []llmapi.Text) (at int) {
	for _, t := range text {
		n := leaves(t)
		if leaf < n {
			return int(t.From) + leaf*leafBytes
		}
		leaf -= n
		at = int(t.To)
	}
	return at
}

// differs finds the first of the pieces in which a text differs, and where that
// lies in the text's body; ok is false when none does. Both are cut alike, so the
// piece is no longer than those that were kept.
func (p pieces) differs(seed maphash.Seed, body []byte, text []llmapi.Text) (from, to int, ok bool) {
	now := cutAt(p.shift, seed, body, text).sums
	i := 0
	for i < min(len(now), len(p.sums)) && now[i] == p.sums[i] {
		i++
	}
	return begin(i<<p.shift, text), begin((i+1)<<p.shift, text), i < max(len(now), len(p.sums))
}
