package routing

import "encoding/binary"

// sessionHash places a conversation by a hash of its key and keeps it there
// while its home can serve it: sticky, and blind to load. It never spills for
// load. A request without a conversation goes to the least in flight.
//
// The hash is a rendezvous hash: when replicas leave, only their conversations
// are placed elsewhere.
type sessionHash struct{}

func (sessionHash) choose(c *Core, q *query) choice {
	if q.key == (Key{}) {
		return leastInFlight{}.choose(c, q)
	}
	f, why := leaves, Why("")
	if q.home != None {
		if f, why = c.fateAt(q); f == stays {
			return c.to(q.home)
		}
	}
	best, highest := q.among[0], uint64(0)
	for _, i := range q.among {
		if h := rendezvous(q.key, i); h > highest {
			best, highest = i, h
		}
	}
	ch := c.to(best)
	ch.spill, ch.why = f == spills, why
	return ch
}

// rendezvous is the weight of a replica for a key.
func rendezvous(k Key, replica int) uint64 {
	h := mix(binary.LittleEndian.Uint64(k[:8]))
	h = mix(h ^ binary.LittleEndian.Uint64(k[8:]))
	return mix(h ^ uint64(replica))
}

// mix is the output function of SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
