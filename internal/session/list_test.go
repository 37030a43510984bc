package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/llmapi"
)

// crowd is a table of n conversations; the i-th has i%7 turns and was seen last
// at second i%11.
func crowd(t testing.TB, n int) *Table {
	tab := table(t, Options{})
	for i := range n {
		now := start.Add(time.Duration(i%11) * time.Second)
		model := fmt.Sprint("m", i%2)
		id := tab.Identify(now, Request{Model: model, Header: head("X-Session-Id", fmt.Sprint(i)), Facts: chat(fmt.Sprint("u:", i))})
		for range i % 7 {
			tab.Begin(now, id, model).End(now, llmapi.Usage{Known: true, Prompt: int64(i)})
		}
	}
	return tab
}

func TestPagesShowEveryConversationOnce(t *testing.T) {
	const n = 1500 // more than one batch of a walk
	tab := crowd(t, n)
	value := map[string]func(Conversation) int64{
		"":              func(c Conversation) int64 { return c.LastSeen.UnixMilli() },
		"last_seen":     func(c Conversation) int64 { return c.LastSeen.UnixMilli() },
		"first_seen":    func(c Conversation) int64 { return c.FirstSeen.UnixMilli() },
		"turns":         func(c Conversation) int64 { return c.Turns },
		"prompt_tokens": func(c Conversation) int64 { return c.PromptTokens },
		"cached_tokens": func(c Conversation) int64 { return c.CachedTokens },
		"in_flight":     func(c Conversation) int64 { return int64(c.Open) },
	}
	for _, sort := range append(Sorts(), "") {
		seen := map[Key]bool{}
		var last []int64
		for cursor, pages := "", 0; ; pages++ {
			page, next, err := tab.Conversations(Query{Sort: sort, Limit: 101, Cursor: cursor})
			if err != nil || pages > n {
				t.Fatalf("%q: %v", sort, err)
			}
			for _, c := range page {
				if seen[c.Key] {
					t.Errorf("%q: %s is listed twice", sort, c.Name)
				}
				seen[c.Key] = true
				last = append(last, -value[sort](c))
			}
			if next == "" {
				break
			}
			cursor = next
		}
		if len(seen) != n || !slices.IsSorted(last) {
			t.Errorf("%q: %d of %d conversations, sorted: %v", sort, len(seen), n, slices.IsSorted(last))
		}
	}
}

func TestListOfOneModel(t *testing.T) {
	page, next, err := crowd(t, 20).Conversations(Query{Model: "m1"})
	if err != nil || next != "" || len(page) != 10 {
		t.Fatalf("%d conversations, next %q, %v", len(page), next, err)
	}
	for _, c := range page {
		if c.Model != "m1" {
			t.Errorf("%s is of model %q", c.Name, c.Model)
		}
	}
}

func TestPagesOfWhatIsKept(t *testing.T) {
	const n = 1500
	tab := crowd(t, n)
	keep := func(k Key) bool {
		_, known := tab.Get(k) // which takes the table's lock
		return known && k[0]%3 == 0
	}
	want := map[Key]bool{}
	for cursor := ""; ; {
		page, next, err := tab.Conversations(Query{Limit: 1000, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page {
			if keep(c.Key) {
				want[c.Key] = true
			}
		}
		if cursor = next; next == "" {
			break
		}
	}
	if len(want) == 0 || len(want) == n {
		t.Fatalf("%d of %d are kept", len(want), n)
	}
	// Those that are kept are found among all, and when they are named.
	named := append(slices.Collect(maps.Keys(want)), Key{1}) // and one that is not known
	for i, sort := range append(Sorts(), Sorts()...) {
		q := Query{Sort: sort, Limit: 37, Keep: keep}
		if i < len(Sorts()) {
			q.Among, q.Keep = named, nil
		}
		seen := map[Key]bool{}
		for {
			page, next, err := tab.Conversations(q)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range page {
				if seen[c.Key] || !want[c.Key] {
					t.Errorf("%s: %s is listed twice, or was not to be kept", sort, c.Name)
				}
				seen[c.Key] = true
			}
			if q.Cursor = next; next == "" {
				break
			}
		}
		if len(seen) != len(want) {
			t.Errorf("%s: %d of %d conversations", sort, len(seen), len(want))
		}
	}
}

func TestListOfOneClientAndOfSubAgents(t *testing.T) {
	tab := table(t, Options{})
	turn := func(client, session, agent string) Key {
		h := head("User-Agent", client+"/1.0", "X-Claude-Code-Session-Id", session)
		if agent != "" {
			h.Set("X-Claude-Code-Agent-Id", agent)
		}
		return tab.Identify(start, Request{Model: "m", Header: h, Facts: chat("u:hello " + session + agent)}).Key
	}
	main := turn("claude-cli", uuid1, "")
	child := turn("claude-cli", uuid1, "a64e")
	other := turn("codex", uuid2, "")
	for _, tt := range []struct {
		q    Query
		want []Key
	}{
		{Query{Parent: main}, []Key{child}},
		{Query{Parent: child}, nil},
		{Query{Client: "codex"}, []Key{other}},
		{Query{Client: "none"}, nil},
	} {
		page, _, err := tab.Conversations(tt.q)
		var got []Key
		for _, c := range page {
			got = append(got, c.Key)
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v, %v, want %v", tt.q, got, err, tt.want)
		}
	}
}

func TestBadQueriesAreRefused(t *testing.T) {
	for _, tt := range []struct {
		q    Query
		want string
	}{
		{Query{Sort: "colour"}, `"colour"`},
		{Query{Limit: -1}, "-1"},
		{Query{Limit: 1001}, "1001"},
		{Query{Cursor: "not hex"}, `"not hex"`},
		{Query{Cursor: "abcd"}, `"abcd"`},
	} {
		if _, _, err := table(t, Options{}).Conversations(tt.q); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one that names %s", tt.q, err, tt.want)
		}
	}
}

func TestFind(t *testing.T) {
	tab := crowd(t, 1000)
	for k, want := range everything(tab) {
		if got, ok := tab.Find(want.Name); !ok || got.Key != k {
			t.Fatalf("%s leads to %q (%v)", want.Name, got.Name, ok)
		}
		if !strings.HasPrefix(want.Name, "c-") || len(want.Name) != 2+nameDigits {
			t.Fatalf("name %q", want.Name)
		}
	}
	for _, name := range []string{"", "c-", "c-12", "c-00000000000g", "d-000000000000", "c-000000000000", strings.Repeat("0", 12)} {
		if c, ok := tab.Find(name); ok {
			t.Errorf("%q leads to %s", name, c.Name)
		}
	}
}
