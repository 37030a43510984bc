package cause

import "github.com/cespare/xxhash/v2"

// leastPiece is the length of the shortest pieces in bytes, mostPieces how many are
// kept of one text: those of a longer text are longer.
const (
	leastPiece = 64
	mostPieces = 64
)

// pieces are hashes of the pieces of a text in order, each of at most
// leastPiece<<shift bytes. Those of a text can be had at any greater shift, since a
// hash is made of the two of its halves; so texts of any lengths can be compared.
type pieces struct {
	shift uint8
	sums  []uint32
}

// halved joins each two neighbours, in place. A last one without a neighbour stays.
func halved(sums []uint32) []uint32 {
	n := 0
	for i := 0; i < len(sums); i += 2 {
		sums[n] = sums[i]
		if i+1 < len(sums) {
			sums[n] = joined(sums[i], sums[i+1])
		}
		n++
	}
	return sums[:n]
}

// joined is the hash of two pieces, by multiplication with the golden ratio.
func joined(a, b uint32) uint32 {
	return uint32((uint64(a)<<32 | uint64(b)) * 0x9e3779b97f4a7c15 >> 32)
}

// part finds the first piece in which two texts differ, and the shift of its
// length; ok is false when none does.
func part(a, b pieces) (piece int, shift uint8, ok bool) {
	shift = max(a.shift, b.shift)
	x, y := a.at(shift), b.at(shift)
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return i, shift, true
		}
	}
	return min(len(x), len(y)), shift, len(x) != len(y)
}

// at are the hashes at a shift that is not less than the pieces' own.
func (p pieces) at(shift uint8) []uint32 {
	if p.shift == shift {
		return p.sums
	}
	sums := append([]uint32(nil), p.sums...)
	for s := p.shift; s < shift; s++ {
		sums = halved(sums)
	}
	return sums
}

// cutter cuts a text, which comes in several runs of a body, into the shortest
// pieces. It is used for one text after the other.
type cutter struct {
	sums   []uint32
	begins []int // of the pieces in the body
}

func (c *cutter) reset() { c.sums, c.begins = c.sums[:0], c.begins[:0] }

// run adds body[from:to]. Pieces do not reach over runs.
func (c *cutter) run(body []byte, from, to int) {
	for ; from < to; from += leastPiece {
		c.sums = append(c.sums, uint32(xxhash.Sum64(body[from:min(from+leastPiece, to)])))
		c.begins = append(c.begins, from)
	}
}

// pieces are those of the text, few enough to be kept. The cutter's own hashes are
// used up by that.
func (c *cutter) pieces() pieces {
	p := pieces{sums: c.sums}
	for len(p.sums) > mostPieces {
		p.sums = halved(p.sums)
		p.shift++
	}
	p.sums = append([]uint32(nil), p.sums...)
	return p
}

// span is where a piece lies in the body, of a text that ends at end.
func (c *cutter) span(piece int, shift uint8, end int) (from, to int) {
	begin := func(i int) int {
		if i <<= shift; i < len(c.begins) {
			return c.begins[i]
		}
		return end
	}
	return begin(piece), begin(piece + 1)
}
