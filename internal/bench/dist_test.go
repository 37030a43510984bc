package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestDistTexts(t *testing.T) {
	for text, want := range map[string]string{
		"none": "0", "0": "0", "400": "400", "0.25": "0.25", "7200-7500": "7200-7500", "3-3": "3-3",
		"exp:12.5": "exp:12.5", "lognormal:400,4": "lognormal:400,4",
	} {
		d, err := ParseDist(text)
		if err != nil || d.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, d, err, want)
		}
	}
	for _, text := range []string{"", "-1", "5-3", "a", "1-", "1-2-3", "exp:", "exp:-1", "lognormal:400", "lognormal:400,0.5", "poisson:3", "NaN", "1e10", "exp:Inf", "2-NaN"} {
		if d, err := ParseDist(text); err == nil {
			t.Errorf("%q is taken as %q", text, d)
		}
	}
}

func FuzzParseDist(f *testing.F) {
	for _, text := range []string{"none", "400", "1-2", "exp:3", "lognormal:4,5"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDist(text)
		if err != nil {
			return
		}
		if again, err := ParseDist(d.String()); err != nil || again != d {
			t.Fatalf("%q is %q, which is %v, %v", text, d, again, err)
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			if v := d.draw(rng); !(v >= 0) {
				t.Fatalf("%q drew %v", text, v)
			}
			if n := d.tokens(rng); n < 1 {
				t.Fatalf("%q drew %d tokens", text, n)
			}
		}
	})
}

func TestDistMoments(t *testing.T) {
	const n = 200_000
	rng := rand.New(rand.NewPCG(4, 2))
	for text, want := range map[string]float64{
		"400": 400, "100-300": 200, "exp:50": 50,
		// Its mean is the median times exp of half the squared deviation.
		"lognormal:100,2": 100 * math.Exp(math.Pow(math.Log(2), 2)/2),
	} {
		d := ParseMust(t, text)
		sum, tokens := 0.0, 0.0
		for range n {
			sum += d.draw(rng)
			tokens += float64(d.tokens(rng))
		}
		for _, got := range []float64{sum / n, tokens / n} {
			if math.Abs(got/want-1) > 0.02 {
				t.Errorf("%s has a mean of %.1f, want %.1f", text, got, want)
			}
		}
	}
	low, high := false, false
	for range 1000 {
		v := Between(2, 4).tokens(rng)
		low, high = low || v == 2, high || v == 4
		if v < 2 || v > 4 {
			t.Fatalf("2-4 drew %d", v)
		}
	}
	if !low || !high {
		t.Error("2-4 does not draw both ends")
	}
}
