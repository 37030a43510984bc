package enginesim

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recording returns the lines of a recording.
func recording(t testing.TB, name string) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(data), "\n")
}

// section returns the lines of a recording after the one that starts with title,
// up to the next empty line.
func section(t testing.TB, lines []string, title string) []string {
	t.Helper()
	for i, line := range lines {
		if strings.HasPrefix(line, title) {
			rest := lines[i+1:]
			if end := slices.Index(rest, ""); end >= 0 {
				rest = rest[:end]
			}
			return rest
		}
	}
	t.Fatalf("the recording has no section %q", title)
	return nil
}

var number = regexp.MustCompile(`\d+`)

// numbers returns all the numbers in a line.
func numbers(line string) []int {
	var ns []int
	for _, s := range number.FindAllString(line, -1) {
		n, _ := strconv.Atoi(s)
		ns = append(ns, n)
	}
	return ns
}

func recordedBox(t testing.TB) *world {
	return newWorld(t, BoxOptions{Params: mustPreset(t, "cpu-tiny"), Ranks: 2})
}

func TestPrefixCacheOfGrowingTurnsAsRecorded(t *testing.T) {
	lines := recording(t, "prefix-cache.txt")
	w := recordedBox(t)
	var c chat
	var turn6 Sequence
	for _, line := range section(t, lines, "turn prompt cached created") {
		row := numbers(line) // turn, prompt, cached, created, ...
		turn6 = Sequence{Prompt: c.grow(t, row[1]), Output: c.answer(8)}
		got, _ := w.ask(0, turn6)
		if want := (usage{row[1], row[2], row[3]}); got != want {
			t.Errorf("turn %d: got %+v, recorded %+v", row[0], got, want)
		}
	}

	for _, line := range section(t, lines, "prompt, cached, created") {
		what, counts, _ := strings.Cut(line, ": (")
		rank, err := strconv.Atoi(regexp.MustCompile(`rank (\d)`).FindStringSubmatch(what)[1])
		if err != nil {
			t.Fatal(err)
		}
		s := turn6
		if salt := regexp.MustCompile(`cache_salt "(.*?)"`).FindStringSubmatch(what); salt != nil {
			s.Salt = salt[1]
		}
		row := numbers(counts)
		got, _ := w.ask(rank, s)
		if want := (usage{row[0], row[1], row[2]}); got != want {
			t.Errorf("%s: got %+v, recorded %+v", what, got, want)
		}
	}

	if !w.box.Reset() {
		t.Error("an idle box refuses to reset its prefix caches")
	}
	after := lines[slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "/reset_prefix_cache") })+2:]
	for rank, line := range after[:2] {
		row := numbers(line[strings.Index(line, "("):])
		got, _ := w.ask(rank, turn6)
		if want := (usage{row[0], row[1], row[2]}); got != want {
			t.Errorf("rank %d after the reset: got %+v, recorded %+v", rank, got, want)
		}
	}
}

func TestPrefixCacheAtExactMultiplesAsRecorded(t *testing.T) {
	lines := recording(t, "prefix-cache.txt")
	w := recordedBox(t)
	for _, line := range section(t, lines, "exact multiples") {
		row := numbers(line) // length, cached first, cached second
		// Each length is a text of its own.
		s := Sequence{Prompt: byteTokens.Append(nil, byteTokens.Text(row[0], uint64(row[0]))), Output: []Token{1}}
		first, _ := w.ask(0, s)
		second, _ := w.ask(0, s)
		if got, want := []int{first.Cached, second.Cached}, row[1:]; !cmp.Equal(got, want) {
			t.Errorf("%d tokens: cached %v, recorded %v", row[0], got, want)
		}
	}

	for _, line := range section(t, lines, "chat: created_cache_tokens") {
		row := numbers(line)
		c := chat{seed: uint64(row[0])}
		s := Sequence{Prompt: c.grow(t, row[0]), Output: c.answer(1)}
		for _, want := range []usage{{row[0], row[1], row[2]}, {row[3], row[4], row[5]}} {
			if got, _ := w.ask(0, s); got != want {
				t.Errorf("got %+v, recorded %+v", got, want)
			}
		}
	}
}

func TestGeneratedTokensAreCachedAsRecorded(t *testing.T) {
	lines := recording(t, "prefix-cache.txt")
	row := numbers(section(t, lines, "generated tokens are cached")[1]) // prompt, cached
	w := recordedBox(t)
	prompt, output := byteTokens.Append(nil, byteTokens.Text(40, 1)), byteTokens.Append(nil, byteTokens.Text(100, 2))
	w.ask(0, Sequence{Prompt: prompt, Output: output})
	got, _ := w.ask(0, Sequence{Prompt: slices.Concat(prompt, output), Output: []Token{1}})
	if got.Prompt != row[0] || got.Cached != row[1] {
		t.Errorf("got %+v, recorded prompt %d cached %d", got, row[0], row[1])
	}
}

func TestIdenticalColdPromptsAtOnceAsRecorded(t *testing.T) {
	lines := recording(t, "prefix-cache.txt")
	row := numbers(section(t, lines, "identical prompt twice")[0])
	want := []string{fmt.Sprint(row[:3]), fmt.Sprint(row[3:6])}

	w := recordedBox(t)
	var got []string
	for range 2 {
		s := Sequence{Prompt: byteTokens.Append(nil, byteTokens.Text(row[0], 1)), Output: []Token{1}}
		w.submit(0, 0, s, func(e Emit) { got = append(got, fmt.Sprint([]int{row[0], e.Cached, e.Created})) })
	}
	w.run()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("recorded -, got +:\n%s", diff)
	}
}
