package llmapi

import "github.com/cespare/xxhash/v2"

// fold chains a hash with the next value: the finaliser of MurmurHash3 over a
// sum that keeps the order.
func fold(h, v uint64) uint64 {
	h = h*0x9e3779b97f4a7c15 + v + 1
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Seeds of the kinds of JSON values, so that "1" and 1 differ.
const (
	seedString = iota + 1
	seedScalar
	seedArray
	seedObject
)

// value consumes any value and hashes its meaning: escapes, white space, key
// order and null members do not count. Null itself hashes to 0.
func (s *scanner) value() uint64 {
	switch s.peek() {
	case '"':
		return fold(seedString, xxhash.Sum64(s.string()))
	case '{':
		var sum uint64 // commutative on purpose
		for key := range s.members {
			k := xxhash.Sum64(key)
			if v := s.value(); v != 0 {
				sum += fold(k, v)
			}
		}
		return fold(seedObject, sum)
	case '[':
		h := uint64(seedArray)
		for range s.elements {
			h = fold(h, s.value())
		}
		return h
	default:
		word := s.scalar()
		if string(word) == "null" {
			return 0
		}
		return fold(seedScalar, xxhash.Sum64(word))
	}
}
