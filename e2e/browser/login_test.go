package browser

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// An operator logs in, sees whose keys are in force, has a changed configuration
// read, and logs out.
func TestLogin(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	const password = "correct horse"
	hash := command(t, password+"\n", "keys", "password")
	file := filepath.Join(t.TempDir(), "warden.yaml")
	engine := warden.Sim(t, 1)[0]
	write := func(keys ...string) {
		var b strings.Builder
		fmt.Fprintf(&b, "models:\n- name: %s\n  engines:\n  - url: %s\nadmin:\n  password: %q\nkeys:\n", model, engine, hash)
		for _, name := range keys {
			fmt.Fprintf(&b, "- name: %s\n  hash: sha256:%x\n  in_flight: 8\n", name, sha256.Sum256([]byte(name)))
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ci")
	g := warden.Gateway(t, nil, "--data", ":memory:", "--config", file)

	p := open(t, browser, g.Admin, "/settings")
	if at := eval[string](p, `location.pathname + location.search`); at != "/login?to=%2Fsettings" {
		t.Fatalf("without a login the page is %s", at)
	}
	axe := axeCore(t)
	for _, look := range looksOfPages {
		p.prefer(look.scheme)
		p.size(look.width)
		p.look(axe, "/login", look.scheme, look.width)
	}
	p.expectBreaks(true) // the browser complains of the status
	p.press("wrong" + kb.Enter)
	p.until("the password to be refused", `document.querySelector("[role=alert]")?.textContent === "The password is wrong."`)
	p.look(axe, "/login, refused", "dark", 360)
	p.expectBreaks(false)
	p.press(password + kb.Enter)
	p.until("the page that was asked for", `location.pathname === "/settings" && document.querySelector("h1").textContent === "Settings"`)

	const keys = `[...document.querySelectorAll("[aria-labelledby=keys] tbody th")].map((k) => k.textContent).join(" ")`
	if got := eval[string](p, keys); got != "ci" {
		t.Errorf("the keys are %q, want ci", got)
	}
	if page := eval[string](p, `document.documentElement.outerHTML`); strings.Contains(page, hash) || strings.Contains(page, fmt.Sprintf("%x", sha256.Sum256([]byte("ci")))) {
		t.Error("the page shows a hash")
	}
	write("ci", "farm")
	p.do(chromedp.Click(chromedp.CSS(`[data-api="/api/settings/reload"]`)))
	p.until("the new key", keys+` === "ci farm"`)
	if err := os.WriteFile(file, []byte("keys: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.expectBreaks(true)
	p.do(chromedp.Click(chromedp.CSS(`[data-api="/api/settings/reload"]`)))
	p.until("the refusal", `document.getElementById("problem").textContent.includes("the former configuration stays in force")`)
	p.until("the page to say so", `document.querySelector("pre.alert")?.textContent.includes("keys")`)
	p.expectBreaks(false)

	other := open(t, browser, g.Admin, "/models/"+model)
	other.until("the model", `document.querySelector("h1").textContent === "`+model+`"`)
	p.do(chromedp.Submit(chromedp.CSS(`form[action="/logout"]`)))
	p.until("the login page", `location.pathname === "/login"`)
	other.until("the login page in another tab", `location.pathname + location.search === "/login?to=%2Fmodels%2F`+model+`"`)
	p.visit("/")
	if at := eval[string](p, `location.pathname`); at != "/login" {
		t.Errorf("after the logout %s is shown", at)
	}
}

// command is what a warden command writes, without the end of the line.
func command(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(string(warden), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("warden %v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}
