package access

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func newKeys(t *testing.T, keys ...Key) *Keys {
	t.Helper()
	k := &Keys{}
	if err := k.Set(keys); err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeysAreDrawnAndReadBack(t *testing.T) {
	one, hash := NewKey()
	other, _ := NewKey()
	if one == other || !strings.HasPrefix(one, keyPrefix) || len(one) != len(keyPrefix)+43 {
		t.Errorf("keys %q and %q", one, other)
	}
	var read KeyHash
	if err := read.UnmarshalText([]byte(hash.String())); err != nil || read != HashKey(one) {
		t.Errorf("%v: %v", read, err)
	}
	for _, bad := range []string{"", one, "sha256:", "sha256:" + strings.Repeat("z", 64), hash.String() + "0", strings.Repeat("0", 64)} {
		err := read.UnmarshalText([]byte(bad))
		if err == nil || (bad == one && strings.Contains(err.Error(), bad)) {
			t.Errorf("%q: error %v; want one that does not repeat the text", bad, err)
		}
	}
}

func TestWithoutKeysEverybodyIsAdmitted(t *testing.T) {
	k := &Keys{}
	g, err := k.Admit(start, "", "m")
	if err != nil || g.Tenant != "" || k.Required() {
		t.Errorf("%+v, %v", g, err)
	}
	g.Release()
}

func TestAKeyIsWhatItsHolderMayTake(t *testing.T) {
	k := newKeys(t,
		Key{Name: "all", Hash: HashKey("a")},
		Key{Name: "few", Hash: HashKey("b"), Models: []string{"org/qwen-*", "exact"}, InFlight: 2, Batch: true},
	)
	for _, test := range []struct {
		key, model, tenant string
		want               any
	}{
		{"a", "anything", "all", nil},
		{"b", "org/qwen-4b", "few", nil},
		{"b", "exact", "few", nil},
		{"b", "exactly", "", new(*Forbidden)},
		{"b", "qwen-4b", "", new(*Forbidden)},
		{"", "exact", "", &ErrUnauthorized},
		{"sha256:" + HashKey("a").String(), "exact", "", &ErrUnauthorized},
	} {
		g, err := k.Admit(start, test.key, test.model)
		switch want := test.want.(type) {
		case nil:
			if err != nil || g.Tenant != test.tenant {
				t.Errorf("%q asks for %q: %+v, %v", test.key, test.model, g, err)
			}
		case *error:
			if !errors.Is(err, *want) {
				t.Errorf("%q asks for %q: %v, want %v", test.key, test.model, err, *want)
			}
		default:
			if !errors.As(err, want) {
				t.Errorf("%q asks for %q: %v, want %T", test.key, test.model, err, want)
			}
		}
		g.Release()
	}
}

func TestLimitsOfAKey(t *testing.T) {
	k := newKeys(t, Key{Name: "x", Hash: HashKey("x"), InFlight: 1}, Key{Name: "y", Hash: HashKey("y"), PerMinute: 60})
	first, err := k.Admit(start, "x", "m")
	if err != nil {
		t.Fatal(err)
	}
	var limited *Limited
	if _, err := k.Admit(start, "x", "m"); !errors.As(err, &limited) || limited.Retry <= 0 {
		t.Errorf("a second open request: %v", err)
	}
	// Another key's requests, and a reload, change nothing of that.
	if err := k.Set([]Key{{Name: "x", Hash: HashKey("new"), InFlight: 1}, {Name: "y", Hash: HashKey("y"), PerMinute: 60}}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Admit(start, "new", "m"); !errors.As(err, &limited) {
		t.Errorf("what was open before the reload is forgotten: %v", err)
	}
	first.Release()
	if _, err := k.Admit(start, "new", "m"); err != nil {
		t.Errorf("after the release: %v", err)
	}

	admitted := 0
	for range 100 {
		if _, err := k.Admit(start, "y", "m"); err == nil {
			admitted++
		}
	}
	if admitted != 6 {
		t.Errorf("%d at once of 60 a minute, want a tenth", admitted)
	}
	if _, err := k.Admit(start, "y", "m"); !errors.As(err, &limited) || limited.Retry > time.Second {
		t.Errorf("retry %v, want within the second that one takes", limited)
	}
	if _, err := k.Admit(start.Add(time.Second), "y", "m"); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

func TestBadSetsChangeNothing(t *testing.T) {
	k := newKeys(t, Key{Name: "x", Hash: HashKey("x")})
	for _, bad := range [][]Key{
		{{Name: "", Hash: HashKey("y")}},
		{{Name: "a", Hash: HashKey("y")}, {Name: "a", Hash: HashKey("z")}},
		{{Name: "a", Hash: HashKey("y")}, {Name: "b", Hash: HashKey("y")}},
	} {
		if err := k.Set(bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	if _, err := k.Admit(start, "x", "m"); err != nil {
		t.Error(err)
	}
}

// TestCountsOfOpenRequestsComeBack holds whatever is admitted, released and
// reloaded.
func TestCountsOfOpenRequestsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &Keys{}
		set := func() {
			if err := k.Set([]Key{
				{Name: "a", Hash: HashKey("a"), InFlight: rapid.IntRange(0, 3).Draw(t, "a may")},
				{Name: "b", Hash: HashKey("b"), PerMinute: rapid.IntRange(0, 100).Draw(t, "b may")},
			}); err != nil {
				t.Fatal(err)
			}
		}
		set()
		var open []Grant
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				if g, err := k.Admit(start, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), "m"); err == nil {
					open = append(open, g)
				}
			},
			"release": func(*rapid.T) {
				if len(open) > 0 {
					open[0].Release()
					open = open[1:]
				}
			},
			"reload": func(*rapid.T) { set() },
			"": func(t *rapid.T) {
				want := map[string]int{}
				for _, g := range open {
					want[g.Tenant]++
				}
				for _, v := range k.View() {
					if v.Open != want[v.Name] {
						t.Fatalf("%s has %d open, want %d", v.Name, v.Open, want[v.Name])
					}
				}
			},
		})
	})
}

// quick is a password with fewer rounds than a file may have: the race detector
// makes them slow.
func quick(t *testing.T, plain string) Password {
	t.Helper()
	p, err := derive(plain, "salt and pepper.", 100)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPasswords(t *testing.T) {
	p, err := derive("correct horse", "salt and pepper.", minRounds)
	if err != nil {
		t.Fatal(err)
	}
	var read Password
	if err := read.UnmarshalText([]byte(p.String())); err != nil || read != p {
		t.Fatalf("%v: %v", read, err)
	}
	if read = quick(t, "correct horse"); !read.Matches("correct horse") || read.Matches("correct horsf") || (Password{}).Matches("") {
		t.Error("the wrong passwords match")
	}
	if _, err := NewPassword("short"); err == nil {
		t.Error("a short password is taken")
	}
	for _, bad := range []string{"", "correct horse", "pbkdf2-sha256:1:AAAAAAAAAAAAAAAA:" + strings.Repeat("A", 43), "pbkdf2-sha256:600000:AAAA:AAAA",
		"pbkdf2-sha256:99999999999:AAAAAAAAAAAAAAAA:" + strings.Repeat("A", 43)} {
		if err := read.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a hash", bad)
		}
	}
}

func TestLoginsLastAndEnd(t *testing.T) {
	l := NewLogins(quick(t, "correct horse"))
	if _, err := l.Open(start, "wrong horse"); !errors.Is(err, ErrWrong) {
		t.Fatal(err)
	}
	token, err := l.Open(start, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		at   time.Duration
		want bool
	}{{0, true}, {11 * time.Hour, true}, {22 * time.Hour, true}, {35 * time.Hour, false}, {35 * time.Hour, false}} {
		if got := l.Valid(start.Add(step.at), token); got != step.want {
			t.Errorf("after %v valid is %v", step.at, got)
		}
	}
	token, _ = l.Open(start, "correct horse")
	l.Close(token)
	if l.Valid(start, token) || l.Valid(start, "") {
		t.Error("a login that was closed is valid")
	}
	token, _ = l.Open(start, "correct horse")
	l.SetPassword(quick(t, "another horse"))
	if l.Valid(start, token) || l.Check(start, "correct horse") == nil {
		t.Error("a login outlives its password")
	}
}

func TestGuessingIsSlow(t *testing.T) {
	l := NewLogins(quick(t, "correct horse"))
	if err := l.Check(start, "correct horse"); err != nil {
		t.Fatal(err)
	}
	var guessing sync.WaitGroup
	var mu sync.Mutex
	tried := 0
	for range 4 * wrongAtOnce {
		guessing.Go(func() {
			if err := l.Check(start, "a guess"); errors.Is(err, ErrWrong) {
				mu.Lock()
				tried++
				mu.Unlock()
			}
		})
	}
	guessing.Wait()
	if tried != wrongAtOnce {
		t.Errorf("%d guesses at once were tried, want %d", tried, wrongAtOnce)
	}
	if err := l.Check(start, "correct horse"); err != nil {
		t.Errorf("the operator's own program is shut out: %v", err)
	}
	if err := l.Check(start.Add(wrongEvery), "a guess"); !errors.Is(err, ErrWrong) {
		t.Errorf("a while later: %v", err)
	}
}

func TestLoginsAreBounded(t *testing.T) {
	l := NewLogins(quick(t, "correct horse"))
	first, err := l.Open(start, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxLogins {
		if _, err := l.Open(start.Add(time.Duration(i+1)*time.Second), "correct horse"); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.tokens) > maxLogins || l.Valid(start, first) {
		t.Errorf("%d logins are open", len(l.tokens))
	}
}
