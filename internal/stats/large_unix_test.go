//go:build unix

package stats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// large turns the test on; its value is the number of requests, or 1 for ten
// million.
const large = "LMWARDEN_LARGE_HISTORY"

// With 10,000,000 requests of 30 days, two models, eight replicas and six clients
// each chart is there within 300 ms and the first page of a conversation within
// 200 ms. What counts is the time that the process has on the CPU, since others
// may be busy on the machine.
//
//	LMWARDEN_LARGE_HISTORY=1 go test -run TestALargeHistory -v -timeout 20m ./internal/stats
func TestALargeHistory(t *testing.T) {
	n := 0
	switch _, err := fmt.Sscan(os.Getenv(large), &n); {
	case err != nil || n < 1:
		t.Skipf("takes minutes and 1.5 GB of disk; set %s=1", large)
	case n == 1:
		n = 10_000_000
	}
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

	ctx := t.Context()
	within := func(most time.Duration, what string, ask func() (int, error)) {
		t.Helper()
		before, began := onCPU(t), time.Now()
		rows, err := ask()
		wall, took := time.Since(began), onCPU(t)-before
		t.Logf("%6d ms, %4d ms of CPU  %s (%d)", wall.Milliseconds(), took.Milliseconds(), what, rows)
		if err != nil || took > most || rows == 0 {
			t.Errorf("%s: %d rows after %v, at most %v: %v", what, rows, took, most, err)
		}
	}
	const chart, page = 300 * time.Millisecond, 200 * time.Millisecond
	for _, text := range []string{
		"range=1h", "range=6h", "range=24h", "range=7d", "range=30d",
		"range=6h&step=10s", "range=24h&step=1m", "range=7d&step=10m", "range=30d&step=1h", "range=300d",
	} {
		for _, group := range []string{"none", "replica", "client"} {
			q := query(t, text+"&group="+group)
			within(chart, "tokens   "+text+" "+group, func() (int, error) {
				c, err := s.Tokens(ctx, q)
				return len(c.Series), err
			})
			within(chart, "requests "+text+" "+group, func() (int, error) {
				c, err := s.Requests(ctx, q)
				return len(c.Series), err
			})
		}
		q := query(t, text+"&model=model-0")
		within(chart, "replicas "+text, func() (int, error) { r, err := s.Replicas(ctx, q); return len(r), err })
		within(chart, "clients  "+text, func() (int, error) { r, err := s.Clients(ctx, q); return len(r), err })
		within(chart, "shifts   "+text, func() (int, error) { r, err := s.Shifts(ctx, q); return len(r), err })
		within(chart, "ledger   "+text, func() (int, error) { r, err := s.Ledger(ctx, q); return len(r), err })
	}
	within(chart, "recent", func() (int, error) { r, err := s.Recent(ctx, "model-0", 500); return len(r), err })
	within(page, "turns", func() (int, error) { r, _, err := s.Turns(ctx, "c-000000000007", 100, 0); return len(r), err })
	within(page, "turns of a heavy conversation", func() (int, error) {
		r, _, err := s.Turns(ctx, "c-0000000003e8", 1000, 0)
		return len(r), err
	})
}

// onCPU is how long the process has been on the CPU.
func onCPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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
					if _, err := stmt.Exec(int(d), at.UnixMilli(), model, member, 40, 39, 0, 1, 0, 0, 2, 36, 1, 1, 700_000, 100_000, 0, 9000, k, k); err != nil {
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
