package stats

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSketch(t *testing.T) {
	if off := logGrowth - math.Log(growth); math.Abs(off) > 1e-15 {
		t.Errorf("logGrowth is off by %v", off)
	}
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(math.Pow(10, rapid.Float64Range(3, 15.9).Draw(t, "log"))) // 1 µs to three months
		}), 1, 60).Draw(t, "times")
		cut := rapid.IntRange(0, len(times)).Draw(t, "cut")
		var a, b, both, all sketch
		for i, d := range times {
			all.add(d)
			if i < cut {
				a.add(d)
			} else {
				b.add(d)
			}
		}
		if err := both.merge(a.encoded()); err != nil {
			t.Fatal(err)
		}
		both.join(&b)
		if !bytes.Equal(both.encoded(), all.encoded()) {
			t.Fatal("merged parts differ from the whole")
		}
		slices.Sort(times)
		q := both.quantiles()
		if q.Count != int64(len(times)) {
			t.Errorf("%d times, want %d", q.Count, len(times))
		}
		for part, got := range map[float64]time.Duration{0.5: q.P50, 0.95: q.P95, 0.99: q.P99} {
			want := times[int(part*float64(len(times)-1))]
			if off := math.Abs(float64(got-want)) / float64(want); off > accuracy+1e-3 { // a nanosecond of a microsecond
				t.Errorf("quantile %v is %v, truly %v", part, got, want)
			}
		}
	})
}

// FuzzSketch: any bytes are a sketch that encodes to what it was read from in
// meaning, or an error.
func FuzzSketch(f *testing.F) {
	var s sketch
	for i := range 50 {
		s.add(time.Duration(i*i) * time.Millisecond)
	}
	s.add(1 << 62)
	s.add(-1)
	f.Add(s.encoded())
	f.Add([]byte{0, 1})
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s, again sketch
		if s.merge(b) != nil {
			return
		}
		_ = s.quantiles()
		if err := again.merge(s.encoded()); err != nil || again.quantiles() != s.quantiles() {
			t.Errorf("%v: %+v is read back as %+v", err, s.quantiles(), again.quantiles())
		}
	})
}
