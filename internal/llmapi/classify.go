package llmapi

import (
	"encoding/binary"
	"math/bits"
)

// blockSize is how many bytes of a string are looked at together, one for each bit
// of a word.
const blockSize = 64

// classes tell the bytes of a block apart, each in one bit.
type classes struct {
	stop   uint64 // quotes and control characters
	slash  uint64 // backslashes
	short  uint64 // what forms an escape of the canonical form with a backslash, of the bytes behind one at least
	beyond uint64 // bytes beyond ASCII
}

// classifyWords is classify for machines that have no faster one. It is unrolled
// because a loop takes a fifth longer.
func classifyWords(block *[blockSize]byte) (c classes) {
	w0, w1 := binary.LittleEndian.Uint64(block[0:]), binary.LittleEndian.Uint64(block[8:])
	w2, w3 := binary.LittleEndian.Uint64(block[16:]), binary.LittleEndian.Uint64(block[24:])
	w4, w5 := binary.LittleEndian.Uint64(block[32:]), binary.LittleEndian.Uint64(block[40:])
	w6, w7 := binary.LittleEndian.Uint64(block[48:]), binary.LittleEndian.Uint64(block[56:])
	special := specialBytes(w0) | specialBytes(w1)<<8 | specialBytes(w2)<<16 | specialBytes(w3)<<24 |
		specialBytes(w4)<<32 | specialBytes(w5)<<40 | specialBytes(w6)<<48 | specialBytes(w7)<<56
	if (w0|w1|w2|w3|w4|w5|w6|w7)&highs != 0 {
		for i := blockSize - 8; i >= 0; i -= 8 {
			c.beyond = c.beyond<<8 | highBits(binary.LittleEndian.Uint64(block[i:]))
		}
	}
	for rest := special; rest != 0; rest &= rest - 1 {
		n := bits.TrailingZeros64(rest)
		if block[n] == '\\' {
			c.slash |= 1 << n
			if shortEscape[block[(n+1)%blockSize]] {
				c.short |= 2 << n
			}
		}
	}
	c.stop = special &^ c.slash
	return c
}

// A byte of each of a word's.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// specialBytes has a bit for each of the eight bytes of a word that is a quote, a
// backslash or a control character.
func specialBytes(w uint64) uint64 {
	// With bit 1 flipped the quote stands right above the control characters. The
	// sums then have the high bit of each byte set that is above both, and of each
	// that is no backslash.
	flipped := (w ^ ones*2) &^ highs
	above := flipped + ones*(0x7f-' ')
	noSlash := (flipped ^ ones*('\\'^2)) + ones*0x7f
	return highBits(^(above&noSlash | w))
}

// highBits has the high bits of a word's bytes, in their order, in the lowest bits.
func highBits(w uint64) uint64 { return w & highs * 0x0002040810204081 >> 56 }
