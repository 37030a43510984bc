package stats

import (
	"log/slog"
	"testing"
	"time"
)

// What a record costs the data path. The bound is 2 µs; it is not asserted under
// the race detector.
func BenchmarkAdd(b *testing.B) {
	s := open(b, inFile(b))
	r := turn(noon)
	b.ReportAllocs()
	for b.Loop() {
		s.Add(r)
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	s, err := New(Options{Path: MemoryOnly, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := turn(noon)
	if n := testing.AllocsPerRun(1000, func() { s.Add(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What a step of a chart costs: a sketch of 300 bins read, told and added to that
// of the range.
func BenchmarkSketch(b *testing.B) {
	var one, step, all sketch
	for i := range 600 {
		one.add(20 * time.Millisecond * time.Duration(1+i))
	}
	encoded := one.encoded()
	b.SetBytes(int64(len(encoded)))
	for b.Loop() {
		if err := step.merge(encoded); err != nil {
			b.Fatal(err)
		}
		step.quantiles()
		all.join(&step)
		step.reset()
	}
}
