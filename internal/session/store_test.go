package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lmwarden/internal/llmapi"
)

// everything is what a table knows, for comparison.
func everything(tab *Table) map[Key]Conversation {
	all := map[Key]Conversation{}
	tab.walk(func(r *row) { all[r.key] = r.copy() }, nil)
	return all
}

// lived is a table with some history.
func lived(t testing.TB) *Table {
	tab := table(t, Options{})
	for i := range 5 {
		now := start.Add(time.Duration(i) * time.Minute)
		r := Request{Tenant: []string{"t", ""}[i/4], Model: "m", Header: head("User-Agent", "x/1"), Facts: chat(fmt.Sprint("u:", i))}
		if i%2 == 0 {
			r.Header = head("X-Claude-Code-Session-Id", fmt.Sprint("session-", i/4), "X-Claude-Code-Agent-Id", fmt.Sprint(i))
		}
		turn := tab.Begin(now, tab.Identify(now, r), "m")
		turn.End(now, llmapi.Usage{Known: true, Prompt: int64(1000 * i), Cached: int64(i), CacheState: llmapi.CacheReported, Completion: 9})
	}
	return tab
}

func saved(t testing.TB, tab *Table, beside Beside) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tab.Save(&b, beside); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSaveAndLoad(t *testing.T) {
	tab := lived(t)
	file := saved(t, tab, func(model string, k Key) []byte { return []byte(model + " home of " + k.Name()) })
	fresh := table(t, Options{})
	homes := map[Key]string{}
	now := start.Add(10 * time.Minute)
	loaded, err := fresh.Load(now, bytes.NewReader(file), func(model string, k Key, data []byte) { homes[k] = model + ": " + string(data) })
	if err != nil || loaded != (Loaded{Conversations: 5}) {
		t.Fatalf("loaded %+v, %v", loaded, err)
	}
	if diff := cmp.Diff(everything(tab), everything(fresh)); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	checkTable(t, fresh)
	for k := range everything(tab) {
		if want := "m: m home of " + k.Name(); homes[k] != want {
			t.Errorf("beside %s: %q, want %q", k.Name(), homes[k], want)
		}
	}
	// Idle order survives: the oldest still leaves first.
	if n := fresh.Expire(start.Add(time.Hour + 2*time.Minute)); n != 2 {
		t.Errorf("%d expired, want the oldest 2", n)
	}
}

func TestLoadLeavesOutWhatIsOldOrTooMuch(t *testing.T) {
	file := saved(t, lived(t), nil)
	fresh := table(t, Options{MaxConversations: 2})
	loaded, err := fresh.Load(start.Add(time.Hour+90*time.Second), bytes.NewReader(file), nil)
	if err != nil || loaded != (Loaded{Conversations: 2, Expired: 2}) {
		t.Errorf("loaded %+v, %v, want 2 and 2 expired", loaded, err)
	}
	for _, c := range everything(fresh) {
		if c.LastSeen.Before(start.Add(3 * time.Minute)) {
			t.Errorf("%s of %v was kept before a newer one", c.Name, c.LastSeen)
		}
	}
}

func TestChangesCanBeAppended(t *testing.T) {
	tab := lived(t)
	var file bytes.Buffer
	if err := tab.Save(&file, nil); err != nil {
		t.Fatal(err)
	}
	append := func(want int) {
		t.Helper()
		if n, err := tab.SaveChanges(&file, nil); n != want || err != nil {
			t.Errorf("%d changes saved (%v), want %d", n, err, want)
		}
	}
	append(0)
	now := start.Add(5 * time.Minute)
	id := named(tab, now, "new")
	tab.Begin(now, id, "m")
	append(1)
	append(0)
	named(tab, now.Add(time.Minute), "new")
	named(tab, now.Add(time.Minute), "newer")
	append(2)
	tab.Changed(id.Key)
	tab.Changed(Key{1})
	append(1)

	fresh := table(t, Options{})
	if _, err := fresh.Load(now.Add(time.Minute), &file, nil); err != nil {
		t.Fatal(err)
	}
	want := everything(tab)
	open := want[id.Key]
	open.Open = 0 // nothing is open after a restart
	want[id.Key] = open
	if diff := cmp.Diff(want, everything(fresh)); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
}

func TestCutFileLosesOnlyItsLastRecord(t *testing.T) {
	file := saved(t, lived(t), nil)
	header := bytes.IndexByte(file, '\n') + 1
	before := 5
	for n := len(file); n >= header; n-- {
		fresh := table(t, Options{})
		loaded, err := fresh.Load(start, bytes.NewReader(file[:n]), nil)
		if err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(file), err)
		}
		if loaded.Conversations > before || loaded.Conversations < before-1 {
			t.Fatalf("%d of %d bytes: %d conversations, then %d", n, len(file), before, loaded.Conversations)
		}
		before = loaded.Conversations
	}
	if before != 0 {
		t.Errorf("%d conversations in an empty file", before)
	}
	// A file system may have made room that was never written.
	loaded, err := table(t, Options{}).Load(start, bytes.NewReader(append(bytes.Clone(file), make([]byte, 4096)...)), nil)
	if err != nil || loaded != (Loaded{Conversations: 5, Cut: true}) {
		t.Errorf("with zeros at the end: %+v, %v", loaded, err)
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	file := saved(t, lived(t), nil)
	flipped := bytes.Clone(file)
	flipped[len(flipped)/2] ^= 1
	header := file[:bytes.IndexByte(file, '\n')+1]
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"a newer version", bytes.Replace(file, []byte("conversations 1\n"), []byte("conversations 2\n"), 1), "version 2"},
		{"another file", []byte("{\"json\": true}\n"), "not a conversation table"},
		{"no line", bytes.Repeat([]byte("x"), 100), "not a conversation table"},
		{"a flipped bit", flipped, "damaged at byte"},
		{"an impossible length", append(bytes.Clone(header), 0xff, 0xff, 0xff, 0xff, 0x7f), "damaged at byte"},
		{"an endless length", append(bytes.Clone(header), bytes.Repeat([]byte{0xff}, 11)...), "damaged at byte"},
	} {
		fresh := table(t, Options{})
		_, err := fresh.Load(start, bytes.NewReader(tt.file), nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "move the file away") {
			t.Errorf("%s: error %v, want one with %q and a remedy", tt.name, err, tt.want)
		}
		if fresh.Len() != 0 {
			t.Errorf("%s: %d conversations were loaded all the same", tt.name, fresh.Len())
		}
	}
	if loaded, err := table(t, Options{}).Load(start, bytes.NewReader(nil), nil); err != nil || loaded != (Loaded{Cut: true}) {
		t.Errorf("an empty file: %+v, %v", loaded, err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestSaveReportsErrors(t *testing.T) {
	tab := lived(t)
	if err := tab.Save(broken{}, nil); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Save: %v", err)
	}
	if _, err := tab.SaveChanges(broken{}, nil); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("SaveChanges: %v", err)
	}
}

// TestRestartChangesNothing compares a table that is saved and loaded now and
// then with one that lives on.
func TestRestartChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stays, _ := New(Options{})
		moves, _ := New(Options{})
		now := start
		var file bytes.Buffer
		if err := moves.Save(&file, nil); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			now = now.Add(time.Second)
			words := []string{fmt.Sprint("u:", rapid.IntRange(0, 1).Draw(t, "opening"))}
			for range rapid.IntRange(0, 10).Draw(t, "turns") {
				words = append(words, fmt.Sprint("a:", rapid.IntRange(0, 1).Draw(t, "answer")), "u:more")
			}
			var h http.Header
			if id := rapid.IntRange(0, 4).Draw(t, "id"); id > 0 {
				h = head("X-Session-Id", fmt.Sprint(id))
			}
			f := chat(words...)
			f.Tools = rapid.IntRange(0, 1).Draw(t, "tools")
			want := stays.Identify(now, Request{Model: "m", Header: h, Facts: f})
			got := moves.Identify(now, Request{Model: "m", Header: h, Facts: f})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%v (-stays +moves):\n%s", words, diff)
			}
			if _, err := moves.SaveChanges(&file, nil); err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				moves, _ = New(Options{})
				if _, err := moves.Load(now, bytes.NewReader(file.Bytes()), nil); err != nil {
					t.Fatal(err)
				}
				checkTable(t, moves)
			}
		}
	})
}

// FuzzLoad reads a record with a true checksum, and whatever comes behind it.
func FuzzLoad(f *testing.F) {
	tab := lived(f)
	file := saved(f, tab, func(string, Key) []byte { return []byte("home") })
	rest := file[bytes.IndexByte(file, '\n')+1:]
	for _, r := range tab.list {
		f.Add(appendBytes(appendRow(nil, r), []byte("home")), rest)
	}
	f.Add([]byte{}, rest[:len(rest)-3])
	f.Add([]byte{0}, []byte{0, 0})
	f.Fuzz(func(t *testing.T, payload, rest []byte) {
		b := []byte(formatName + strconv.Itoa(formatVersion) + "\n")
		if len(payload) > 0 {
			b = appendBytes(b, payload)
			b = binary.LittleEndian.AppendUint64(b, xxhash.Sum64(payload))
		}
		b = append(b, rest...)
		tab := table(t, Options{MaxConversations: 10})
		if _, err := tab.Load(start, bytes.NewReader(b), func(string, Key, []byte) {}); err != nil && tab.Len() != 0 {
			t.Errorf("%d conversations in spite of %v", tab.Len(), err)
		}
		checkTable(t, tab)
		again := table(t, Options{MaxConversations: 10})
		if _, err := again.Load(start, bytes.NewReader(saved(t, tab, nil)), nil); err != nil {
			t.Errorf("what was loaded cannot be saved: %v", err)
		}
		if diff := cmp.Diff(everything(tab), everything(again)); diff != "" {
			t.Errorf("saved and loaded again (-want +got):\n%s", diff)
		}
	})
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "conversations")
	size := 0 // of what is saved beside a conversation
	home := func(_ string, k Key) []byte { return []byte("home of " + k.Name() + strings.Repeat(" ", size)) }
	tab := lived(t)
	file, loaded, err := OpenFile(path, tab, start, nil)
	if err != nil || loaded != (Loaded{}) {
		t.Fatalf("a new file: %+v, %v", loaded, err)
	}
	now := start.Add(5 * time.Minute)
	// What a kill leaves is the file as the last Sync left it.
	afterKill := func() *Table {
		t.Helper()
		fresh := table(t, Options{})
		homes := 0
		if _, _, err := OpenFile(path, fresh, now, func(_ string, k Key, data []byte) {
			if strings.TrimSpace(string(data)) == "home of "+k.Name() {
				homes++
			}
		}); err != nil {
			t.Fatal(err)
		}
		if homes != fresh.Len() {
			t.Errorf("%d homes for %d conversations", homes, fresh.Len())
		}
		return fresh
	}
	sync := func() {
		t.Helper()
		if err := file.Sync(home); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(everything(tab), everything(afterKill())); diff != "" {
			t.Errorf("after a kill (-want +got):\n%s", diff)
		}
	}
	sync()
	first, _ := os.Stat(path)
	named(tab, now, "new")
	sync()
	if second, _ := os.Stat(path); !os.SameFile(first, second) || second.Size() <= first.Size() {
		t.Error("a change was not appended")
	}
	// A file that grew is written anew.
	size = 100_000
	for i := 0; ; i++ {
		for k := range everything(tab) {
			tab.Changed(k)
		}
		sync()
		if grown, _ := os.Stat(path); !os.SameFile(first, grown) {
			break
		} else if i > 10 {
			t.Fatalf("%d bytes, and still the first file", grown.Size())
		}
	}
	size = 2 * maxRecord
	tab.Changed(named(tab, now, "new").Key)
	if err := file.Sync(home); err == nil {
		t.Error("a record was written that cannot be read")
	}
	size = 0
	sync()
	// After a failed write the next one is complete.
	file.f.Close()
	named(tab, now, "lost?")
	if err := file.Sync(home); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("writing to a closed file: %v, want an error that names it", err)
	}
	sync()
	named(tab, now, "last")
	if err := file.Close(home); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(everything(tab), everything(afterKill())); diff != "" {
		t.Errorf("after a stop (-want +got):\n%s", diff)
	}
	if err := file.Close(home); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if err := file.Sync(home); err == nil {
		t.Error("a closed file was written")
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}
}

func TestDamagedFileIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "conversations")
	if err := os.WriteFile(path, []byte("precious\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := OpenFile(path, table(t, Options{}), start, nil)
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one that names the file", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious\n" {
		t.Errorf("the file now holds %q", b)
	}
}
