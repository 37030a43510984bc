package stats

import (
	"encoding/binary"
	"math"
	"time"
)

// sketch is a distribution of times from which quantiles can be had. Sketches
// merge exactly: it is a DDSketch (Masson, Rim, Lee: "DDSketch: a fast and
// fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019) with
// whole counts and a fixed range, from a microsecond to four months. The zero
// sketch is empty.
type sketch struct {
	counts    []int64 // by bin; there is room for some that are not in use
	low, high int     // those in use are from low to below high
	total     int64
}

const (
	// accuracy is the largest relative error of a quantile.
	accuracy = 0.01
	// Bin i holds the times from growth^(i-1) to growth^i microseconds.
	growth = (1 + accuracy) / (1 - accuracy)
	bins   = 1500
	// logGrowth is the natural logarithm of growth.
	logGrowth = 0.0200006667066695
)

func (s *sketch) add(d time.Duration) {
	micros := float64(d) / float64(time.Microsecond)
	bin := 0
	if micros > 1 {
		bin = min(int(math.Ceil(math.Log(micros)/logGrowth)), bins-1)
	}
	s.count(bin, 1)
}

func (s *sketch) count(bin int, n int64) {
	if bin >= len(s.counts) {
		s.grow(bin + 1)
	}
	if s.total == 0 {
		s.low = bin
	}
	s.low, s.high = min(s.low, bin), max(s.high, bin+1)
	s.counts[bin] += n
	s.total += n
}

// grow makes room for bins below n, and for more.
func (s *sketch) grow(n int) {
	if n > len(s.counts) {
		s.counts = append(s.counts, make([]int64, min(max(n, 2*len(s.counts)), bins)-len(s.counts))...)
	}
}

func (s *sketch) join(o *sketch) {
	if o.total == 0 {
		return
	}
	s.grow(o.high)
	if s.total == 0 {
		s.low = o.low
	}
	s.low, s.high = min(s.low, o.low), max(s.high, o.high)
	to := s.counts[o.low:o.high]
	for i, n := range o.counts[o.low:o.high] {
		to[i] += n
	}
	s.total += o.total
}

func (s *sketch) reset() {
	clear(s.counts[s.low:s.high])
	s.low, s.high, s.total = 0, 0, 0
}

// encoded is the sketch for a file, nil when it is empty: for each bin in use the
// distance from the one before and its count, as varints.
func (s *sketch) encoded() []byte {
	var b []byte
	before := -1
	for bin := s.low; bin < s.high; bin++ {
		if n := s.counts[bin]; n > 0 {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(bin-before)), uint64(n))
			before = bin
		}
	}
	return b
}

// merge adds an encoded sketch. What nobody can have encoded is an error and
// leaves the sketch in an undefined state.
func (s *sketch) merge(b []byte) error {
	bin := -1
	for len(b) > 0 {
		if len(b) > 1 && (b[0]|b[1]) < 0x80 && b[0] > 0 { // nearly all numbers are of one byte
			if bin += int(b[0]); bin >= bins {
				return errDamaged
			}
			s.count(bin, int64(b[1]))
			b = b[2:]
			continue
		}
		step, n := binary.Uvarint(b)
		if n <= 0 || step == 0 || step > bins {
			return errDamaged
		}
		b = b[n:]
		count, n := binary.Uvarint(b)
		if bin += int(step); n <= 0 || bin >= bins || count > 1<<48 {
			return errDamaged
		}
		b = b[n:]
		s.count(bin, int64(count))
	}
	return nil
}

// Quantiles of a time, each within 1 % of a true one; all 0 when Count is 0.
type Quantiles struct {
	Count         int64
	P50, P95, P99 time.Duration
}

func (s *sketch) quantiles() Quantiles {
	q := Quantiles{Count: s.total}
	if s.total == 0 {
		return q
	}
	wanted := [...]struct {
		part  float64
		value *time.Duration
	}{{0.5, &q.P50}, {0.95, &q.P95}, {0.99, &q.P99}}
	bin, below := s.low-1, int64(0)
	for _, w := range wanted {
		// The first bin with which more than that part is below: counts are whole.
		for rank := int64(w.part * float64(s.total-1)); below <= rank; {
			bin++
			below += s.counts[bin]
		}
		*w.value = valueOf(bin)
	}
	return q
}

// valueOf is a time within the accuracy of all times of a bin.
func valueOf(bin int) time.Duration {
	return time.Duration(2 * math.Pow(growth, float64(bin)) / (growth + 1) * float64(time.Microsecond))
}
