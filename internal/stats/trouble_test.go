package stats

import (
	"bufio"
	"bytes"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func requests(t *testing.T, s *running) int64 {
	t.Helper()
	chart, err := s.Requests(t.Context(), query(t, "range=24h"))
	if err != nil {
		t.Fatal(err)
	}
	return chart.Series[0].Total.Requests
}

func TestAHistorySurvivesARestart(t *testing.T) {
	path := inFile(t)
	first := open(t, path)
	first.Add(turn(noon))
	first.shut() // writes what was added
	second := open(t, path)
	add(t, second, turn(noon))
	if n := requests(t, second); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/*unreadable*"); left != nil {
		t.Errorf("moved aside: %v", left)
	}
}

// A file that cannot be read is moved aside and said so, and the history goes on.
func TestAnUnreadableFileIsMovedAside(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"not a database": func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"cut": func(t *testing.T, path string) {
			if err := os.Truncate(path, 5000); err != nil {
				t.Fatal(err)
			}
		},
		"newer": func(t *testing.T, path string) {
			change(t, path, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`)
		},
		"without its tables": func(t *testing.T, path string) {
			change(t, path, `DROP TABLE sums_1m`)
		},
		"another program's": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			change(t, path, `CREATE TABLE requests (x)`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := inFile(t)
			s := open(t, path)
			add(t, s, turn(noon))
			s.shut()
			spoil(t, path)

			s = open(t, path)
			add(t, s, turn(noon))
			if n := requests(t, s); n != 1 {
				t.Errorf("%d requests, want the new one", n)
			}
			st := s.State()
			if !st.OK || !strings.Contains(st.Sentence, "could not be read") || !strings.Contains(st.Sentence, ".unreadable-") {
				t.Errorf("state %+v", st)
			}
			if left, _ := filepath.Glob(filepath.Dir(path) + "/*.unreadable-*"); len(left) == 0 {
				t.Error("nothing was moved aside")
			}
		})
	}
}

func change(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, false))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// A file that breaks while it is open is moved aside too.
func TestAFileThatBreaksIsMovedAside(t *testing.T) {
	s := open(t, inFile(t))
	add(t, s, turn(noon))
	if _, err := s.writable().write.Exec(`UPDATE sums_1m SET duration = x'00ff'`); err != nil {
		t.Fatal(err)
	}
	add(t, s, turn(noon))
	add(t, s, turn(noon))
	if st := s.State(); !st.OK || !strings.Contains(st.Sentence, "damaged") {
		t.Errorf("state %+v", st)
	}
	if n := requests(t, s); n != 2 {
		t.Errorf("%d requests, want the two since", n)
	}
}

// While the disk is full requests are kept in memory, up to a bound; the history
// says so, can be read, and catches up when there is room.
func TestAFullDisk(t *testing.T) {
	var log bytes.Buffer
	s := open(t, inFile(t), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	add(t, s, turn(noon))
	pages := func(most int) {
		t.Helper()
		if _, err := s.writable().write.Exec(fmt.Sprint("PRAGMA max_page_count = ", most)); err != nil {
			t.Fatal(err)
		}
	}
	pages(1) // means: as many as there are
	for range 500 {
		r := turn(noon.Add(-time.Minute))
		r.Model = strings.Repeat("long", 100)
		s.Add(r)
	}
	add(t, s)
	if st := s.State(); st.OK || !strings.Contains(st.Sentence, "the disk is full") {
		t.Errorf("state %+v", st)
	}
	if n := requests(t, s); n != 1 {
		t.Errorf("%d requests can be read, want 1", n)
	}
	pages(1 << 30)
	add(t, s)
	if st := s.State(); !st.OK || st.Sentence != "" {
		t.Errorf("state after the disk has room: %+v", st)
	}
	if n := requests(t, s); n != 501 {
		t.Errorf("%d requests after the disk has room, want 501", n)
	}
	s.shut()
	for _, line := range []string{"cannot be written", "written again"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%q is said %d times", line, n)
		}
	}
}

// A batch takes several statements, of many rows and of one: of one that fails
// midway nothing is left, and it is written whole, in order, when it can be.
func TestABatchIsWrittenWholeOrNotAtAll(t *testing.T) {
	s := open(t, inFile(t))
	db := s.writable().write
	limit := func(pages int) {
		t.Helper()
		if _, err := db.Exec(fmt.Sprint("PRAGMA max_page_count = ", pages)); err != nil {
			t.Fatal(err)
		}
	}
	written := func() (prompts []int64) {
		t.Helper()
		all, err := db.Query("SELECT prompt FROM requests ORDER BY id")
		if err != nil {
			t.Fatal(err)
		}
		defer all.Close()
		for all.Next() {
			var n int64
			if err := all.Scan(&n); err != nil {
				t.Fatal(err)
			}
			prompts = append(prompts, n)
		}
		return prompts
	}
	add(t, s, turn(noon)) // knows all words
	s.empty(t)
	var want []int64
	for n := range int64(20*rows + 3) {
		r := turn(noon)
		r.Prompt = n
		want = append(want, n)
		s.Add(r)
	}
	limit(1) // means: as many as there are
	add(t, s)
	if got := written(); len(got) != 0 || s.State().OK {
		t.Fatalf("%d of the records are left, state %+v", len(got), s.State())
	}
	limit(1 << 30)
	add(t, s)
	if d := cmp.Diff(want, written()); d != "" {
		t.Error(d)
	}
}

// A folder that cannot be written to is tried again.
func TestAFolderThatAppearsLater(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "data")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, filepath.Join(blocked, "history.db"))
	defer s.shut()
	s.Add(turn(noon))
	if st := s.State(); st.OK || !strings.Contains(st.Sentence, "not a directory") {
		t.Errorf("state %+v", st)
	}
	if _, err := s.Tokens(t.Context(), query(t, "")); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a query says %v", err)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	add(t, s)
	if n := requests(t, s); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// Add drops and counts what the writer does not take; here there is none.
func TestAddNeverWaits(t *testing.T) {
	s, err := New(Options{Path: MemoryOnly, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for range queued + 5 {
		s.Add(turn(noon))
	}
	for range 100 {
		s.AddSamples([]Sample{{}})
	}
	if n := s.Dropped(); n != 5 {
		t.Errorf("dropped %d, want 5", n)
	}
}

// A stranger's many names share one in the end.
func TestClientNamesAreBounded(t *testing.T) {
	s := open(t, MemoryOnly)
	for i := range maxWords + 50 {
		r := turn(noon)
		r.Client = fmt.Sprint("client-", i)
		s.Add(r)
	}
	late := turn(noon)
	late.Model = "a model that comes late"
	add(t, s, late)
	clients, err := s.Clients(t.Context(), query(t, "range=10s&step=10s"))
	if err != nil {
		t.Fatal(err)
	}
	if clients[0].Name != other || clients[0].Requests < 50 || len(clients) > maxWords {
		t.Errorf("%d clients, the first %+v", len(clients), clients[0])
	}
	if recent, err := s.Recent(t.Context(), late.Model, 1); err != nil || len(recent) != 1 {
		t.Errorf("a model's name got lost: %v %v", recent, err)
	}
}

func TestRetention(t *testing.T) {
	s := open(t, inFile(t), func(o *Options) { o.Keep, o.KeepTotals = 10*day, 20*day })
	for _, age := range []time.Duration{0, 3 * day, 11 * day, 21 * day} {
		r := turn(noon.Add(-age))
		r.Cause = "evicted"
		add(t, s, r)
	}
	s.AddSamples([]Sample{{Time: noon.Add(-33 * day), Model: "qwen"}})
	add(t, s)
	if s.retain(t.Context()) {
		t.Error("there is more to delete")
	}
	for query, want := range map[string]int{
		`SELECT count(*) FROM requests`: 2, `SELECT count(*) FROM sums_10s WHERE dimension = 0`: 1,
		`SELECT count(*) FROM sums_1m WHERE dimension = 0`: 2, `SELECT count(*) FROM sums_10m WHERE dimension = 0`: 4, `SELECT count(*) FROM sums_1h WHERE dimension = 2`: 3,
		`SELECT count(*) FROM causes`: 3, `SELECT count(*) FROM samples_1m`: 0,
	} {
		var n int
		if err := s.writable().read.QueryRow(query).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d (%v), want %d", query, n, err, want)
		}
	}
}

func TestTheOldestRequestsLeaveWhenTheFileIsTooLarge(t *testing.T) {
	path := inFile(t)
	s := open(t, path)
	for range 2 * retainBatch {
		s.Add(turn(noon))
	}
	add(t, s)
	s.shut() // the writer looks for old requests too, at times of its own
	db, err := openDatabase(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	o := s.o
	o.MaxBytes = 300 << 10
	for more := true; more; {
		if more, err = db.retain(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	used, err := db.used(t.Context())
	db.close()
	if err != nil || used > 500<<10 {
		t.Errorf("%d bytes are in use: %v", used, err)
	}
	s = open(t, path)
	turns, _, err := s.Turns(t.Context(), turn(noon).Conversation, 1, 0)
	if err != nil || len(turns) != 1 || turns[0].ID != 2*retainBatch {
		t.Errorf("the newest is %+v: %v", turns, err)
	}
	if n := requests(t, s); n != 2*retainBatch {
		t.Errorf("the sums have %d requests, want all", n)
	}
}

const killedPath = "LMWARDEN_TEST_HISTORY"

// A kill costs what was added within the last second.
func TestAKill(t *testing.T) {
	if path := os.Getenv(killedPath); path != "" {
		s := open(t, path, func(o *Options) { o.Now = nil })
		for n := 1; ; n++ {
			s.Add(turn(time.Now()))
			fmt.Println("added", n, time.Now().UnixMilli())
			<-time.After(time.Millisecond)
		}
	}
	path := filepath.Join(t.TempDir(), "history.db")
	child := exec.Command(os.Args[0], "-test.run=^TestAKill$")
	child.Env = append(os.Environ(), killedPath+"="+path)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	type added struct{ n, at int64 }
	var all []added
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var a added
		if _, err := fmt.Sscanf(lines.Text(), "added %d %d", &a.n, &a.at); err != nil {
			t.Fatalf("the child says %q", lines.Text())
		}
		if all = append(all, a); a.at-all[0].at > 1500 {
			break
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now().UnixMilli()
	if err := child.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	s := open(t, path)
	kept := int64(-1)
	if err := s.writable().read.QueryRow(`SELECT count(*) FROM requests`).Scan(&kept); err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.at < killed-1000 && a.n > kept {
			t.Fatalf("record %d, added %d ms before the kill, is lost; %d are there", a.n, killed-a.at, kept)
		}
	}
	if kept < 10 {
		t.Errorf("only %d records are there", kept)
	}
	if st := s.State(); st.Sentence != "" {
		t.Errorf("after a kill: %s", st.Sentence)
	}
}
