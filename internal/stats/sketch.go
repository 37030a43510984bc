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
	counts []int64 // by bin, up to the highest that is in use
	total  int64
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
	if more := bin + 1 - len(s.counts); more > 0 {
		s.counts = append(s.counts, make([]int64, more)...)
	}
	s.counts[bin] += n
	s.total += n
}

func (s *sketch) join(o *sketch) {
	for bin, n := range o.counts {
		if n > 0 {
			s.count(bin, n)
		}
	}
}

func (s *sketch) reset() {
	clear(s.counts)
	s.counts, s.total = s.counts[:0], 0
}

// encoded is the sketch for a file, nil when it is empty: for each bin in use the
// distance from the one before and its count, as varints.
func (s *sketch) encoded() []byte {
	var b []byte
	before := -1
	for bin, n := range s.counts {
		if n > 0 {
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
	next, below := 0, int64(0)
	for bin, n := range s.counts {
		below += n
		for next < len(wanted) && float64(below) > wanted[next].part*float64(s.total-1) {
			*wanted[next].value = valueOf(bin)
			next++
		}
	}
	return q
}

// valueOf is a time within the accuracy of all times of a bin.
func valueOf(bin int) time.Duration {
	return time.Duration(2 * math.Pow(growth, float64(bin)) / (growth + 1) * float64(time.Microsecond))
}
