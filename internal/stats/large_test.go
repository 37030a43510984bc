package stats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Large is a history with n requests of 30 days, two models, eight replicas and six
// clients, and full sums of them, at the moment that it returns. It is for the test
// that asks for charts and for the pages made of them, which are of another package.
func Large(t *testing.T, n int) (*Store, time.Time) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.db")
	s := open(t, path, func(o *Options) { o.MaxBytes = 1 << 40 })
	began := time.Now()
	fillRequests(t, s, n)
	fillSums(t, s)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests in %v, %d MB", n, time.Since(began).Round(time.Second), info.Size()>>20)
	return s.Store, noon
}

const (
	largeDays                                = 30
	largeModels, largeReplicas, largeClients = 2, 8, 6
)

// fillRequests writes n requests of 30 days by SQL alone. One in a hundred is of
// the conversation 1000.
func fillRequests(t *testing.T, s *running, n int) {
	t.Helper()
	first := turn(noon)
	first.Model, first.Client = "model-0", "client-0"
	second := turn(noon)
	second.Model, second.Client, second.Cause, second.Reason = "model-1", "client-1", "evicted", "moved"
	add(t, s, first, second) // for their words
	for i := range largeClients {
		r := turn(noon)
		r.Client = fmt.Sprint("client-", i)
		add(t, s, r)
	}
	const chunk = 500_000
	for from := 0; from < n; from += chunk {
		if _, err := s.writable().write.ExecContext(context.Background(), `
			WITH RECURSIVE i(i) AS (SELECT ? UNION ALL SELECT i + 1 FROM i WHERE i + 1 < ?)
			INSERT INTO requests (ended, model, replica, conversation, client, reason, why, outcome, ttfb, duration, prompt, cached, completion)
			SELECT ? + i * ? / ?, (SELECT id FROM words WHERE word = 'model-0') , i % 8, iif(i % 100 = 0, 1000, i % 200000), (SELECT id FROM words WHERE word = 'client-1'),
				(SELECT id FROM words WHERE word = 'stayed'), (SELECT id FROM words WHERE word = ''), (SELECT id FROM words WHERE word = 'ok'),
				100000 + i % 1000, 5000000 + i % 1000, 20000 + i % 5000, 18000, 200 + i % 100 FROM i`,
			from, min(from+chunk, n), noon.Add(-largeDays*day).UnixMilli(), (largeDays * day).Milliseconds(), n); err != nil {
			t.Fatal(err)
		}
	}
}

// fillSums writes full sums of 30 days, with sketches of as many requests as ten
// million have in a step.
func fillSums(t *testing.T, s *running) {
	t.Helper()
	db := s.writable()
	random := rand.New(rand.NewPCG(1, 2))
	words, err := db.allWords(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	number := map[string]int64{}
	for id, w := range words {
		number[w] = id
	}
	for res, r := range resolutions {
		var sketches [16][]byte
		for i := range sketches {
			var k sketch
			for range max(10_000_000*int(r.step/time.Second)/int(largeDays*day/time.Second)/largeModels, 1) {
				k.add(time.Duration(float64(200*time.Millisecond) * random.ExpFloat64()))
			}
			sketches[i] = k.encoded()
		}
		tx, err := db.write.Begin()
		if err != nil {
			t.Fatal(err)
		}
		keep := min(largeDays*day, r.keep)
		if r.keep == 0 {
			keep = largeDays * day
		}
		exec := func(query string, args ...any) {
			if _, err := tx.Exec(query, args...); err != nil {
				t.Fatal(err)
			}
		}
		stmt, sample := tx.Stmt(db.insert.sums[res].add), tx.Stmt(db.insert.sums[res].sample)
		for at := floor(noon.Add(-keep), r.step); at.Before(noon); at = at.Add(r.step) {
			for m := range largeModels {
				model := number[fmt.Sprint("model-", m)]
				put := func(d dimension, member int64) {
					k := sketches[random.IntN(len(sketches))]
					if _, err := stmt.Exec(int(d), at.UnixMilli(), model, member, 40, 39, 0, 1, 0, 0, 2, 36, 1, 1, 700_000, 100_000, 0, 9000, k, k, k); err != nil {
						t.Fatal(err)
					}
				}
				put(ofAll, 0)
				for i := range int64(largeReplicas) {
					put(ofReplica, i)
					if _, err := sample.Exec(at.UnixMilli(), model, i, 1, 4, 9, 1, 3, 1, 1, 0.7); err != nil {
						t.Fatal(err)
					}
				}
				for i := range largeClients {
					put(ofClient, number[fmt.Sprint("client-", i)])
				}
				switch r.step {
				case shiftStep:
					exec(sqlShift, at.UnixMilli(), model, number["moved"], number[""], random.IntN(8), random.IntN(8), 1)
				case time.Hour:
					for i := range largeReplicas {
						exec(sqlCause, at.UnixMilli(), model, i, number["evicted"], 3, 50_000)
					}
				}
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}
