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

func newGate(t *testing.T, keys ...Key) *Gate {
	t.Helper()
	k := &Gate{}
	if err := k.SetKeys(keys); err != nil {
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
	k := &Gate{}
	g, err := k.Admit(start, "", "m")
	if err != nil || g.Tenant != "" || k.Required() {
		t.Errorf("%+v, %v", g, err)
	}
	g.Release()
}

func TestAKeyIsWhatItsHolderMayTake(t *testing.T) {
	k := newGate(t,
		Key{Name: "all", Hash: HashKey("a")},
		Key{Name: "few", Hash: HashKey("b"), Models: []string{"org/qwen-*", "exact"}, Limits: Limits{InFlight: 2}, Batch: true},
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
	k := newGate(t, Key{Name: "x", Hash: HashKey("x"), Limits: Limits{InFlight: 1}}, Key{Name: "y", Hash: HashKey("y"), Limits: Limits{PerMinute: 60}})
	first, err := k.Admit(start, "x", "m")
	if err != nil {
		t.Fatal(err)
	}
	var limited *Limited
	if _, err := k.Admit(start, "x", "m"); !errors.As(err, &limited) || limited.Retry <= 0 {
		t.Errorf("a second open request: %v", err)
	}
	// Another key's requests, and a reload, change nothing of that.
	if err := k.SetKeys([]Key{{Name: "x", Hash: HashKey("new"), Limits: Limits{InFlight: 1}}, {Name: "y", Hash: HashKey("y"), Limits: Limits{PerMinute: 60}}}); err != nil {
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
	k := newGate(t, Key{Name: "x", Hash: HashKey("x")})
	for _, bad := range [][]Key{
		{{Name: "", Hash: HashKey("y")}},
		{{Name: "a", Hash: HashKey("y")}, {Name: "a", Hash: HashKey("z")}},
		{{Name: "a", Hash: HashKey("y")}, {Name: "b", Hash: HashKey("y")}},
	} {
		if err := k.SetKeys(bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	if _, err := k.Admit(start, "x", "m"); err != nil {
		t.Error(err)
	}
}

func TestLimitsOfAModel(t *testing.T) {
	k := newGate(t, Key{Name: "x", Hash: HashKey("x"), Limits: Limits{PerMinute: 600}}, Key{Name: "y", Hash: HashKey("y")})
	k.SetModels(map[string]Limits{"m": {InFlight: 2}, "": {InFlight: 1}})
	limited := func(key, model string) bool {
		_, err := k.Admit(start, key, model)
		var l *Limited
		if err != nil && (!errors.As(err, &l) || l.Of != "model" || l.Name != model || l.Retry <= 0) {
			t.Errorf("%s asks for %s: %v", key, model, err)
		}
		return err != nil
	}
	first, err := k.Admit(start, "x", "m")
	if err != nil {
		t.Fatal(err)
	}
	if limited("y", "m") || !limited("y", "m") || limited("y", "another") || !limited("y", "another") {
		t.Error("a limit does not hold for all keys together, or for each model apart")
	}
	// A request that the model refuses is not one of the key's.
	for range 100 {
		if !limited("x", "m") {
			t.Fatal("a third open request")
		}
	}
	if _, err := k.Admit(start, "x", ""); err != nil {
		t.Errorf("the key has paid for what was refused: %v", err)
	}
	k.SetModels(map[string]Limits{"m": {InFlight: 3}})
	if limited("y", "m") || !limited("y", "m") || limited("y", "another") {
		t.Error("after a change of the limits")
	}
	first.Release()
	if l, open := k.Model("m"); l.InFlight != 3 || open != 2 {
		t.Errorf("%+v, %d open", l, open)
	}
}

// TestARequestThatBeganEarlyEarnsNothing: a client that sends its body slowly is
// admitted with an older time than those before it.
func TestARequestThatBeganEarlyEarnsNothing(t *testing.T) {
	k := newGate(t)
	k.SetModels(map[string]Limits{"m": {PerMinute: 60}})
	admitted := 0
	for i := range 1000 {
		now := start.Add(time.Hour)
		if i%2 == 1 {
			now = start
		}
		if g, err := k.Admit(now, "", "m"); err == nil {
			admitted++
			g.Release()
		}
	}
	if admitted != 6 {
		t.Errorf("%d of 1000 at once, want a tenth of 60", admitted)
	}
}

// TestCountsOfOpenRequestsComeBack holds whatever is admitted, released and
// reloaded.
func TestCountsOfOpenRequestsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &Gate{}
		draw := func(what string) Limits {
			return Limits{rapid.IntRange(0, 3).Draw(t, what+" may at once"), rapid.IntRange(0, 100).Draw(t, what+" may in a minute")}
		}
		set := func() {
			if err := k.SetKeys([]Key{{Name: "a", Hash: HashKey("a"), Limits: draw("a")}, {Name: "b", Hash: HashKey("b"), Limits: draw("b")}}); err != nil {
				t.Fatal(err)
			}
			k.SetModels(map[string]Limits{"m": draw("m"), "": draw("others")})
		}
		set()
		type admitted struct {
			Grant
			model string
		}
		var open []admitted
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				key, model := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), rapid.SampledFrom([]string{"m", "n", ""}).Draw(t, "model")
				if g, err := k.Admit(start, key, model); err == nil {
					open = append(open, admitted{g, model})
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
				keys, models := map[string]int{}, map[string]int{}
				for _, g := range open {
					keys[g.Tenant]++
					models[g.model]++
				}
				for _, v := range k.View() {
					if v.Open != keys[v.Name] {
						t.Fatalf("%s has %d open, want %d", v.Name, v.Open, keys[v.Name])
					}
				}
				for _, model := range []string{"m", "n"} {
					if _, n := k.Model(model); n != models[model] {
						t.Fatalf("%s has %d open, want %d", model, n, models[model])
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
