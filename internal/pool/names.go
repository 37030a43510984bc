package pool

import (
	"slices"
	"strings"

	"lmwarden/internal/engine"
)

// claudeAlias is what Claude Code's several model names have in common.
const claudeAlias = "claude-*"

// names says by which names clients may call the model, apart from its own:
// those of the configuration, and those that the engines know it by.
func (p *Pool) names() (aliases, served []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.configured.Aliases, p.servedNames()
}

// statedName is the served name of the configuration, empty when it has none.
func (p *Pool) statedName() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.configured.ServedName
}

// recognised tells whether the name is known by which engines know the model.
func (p *Pool) recognised() bool { return p.ServedName() != "" }

// servedNames lists the names that the engines know the model by, adapters
// included. Callers hold mu.
func (p *Pool) servedNames() []string {
	var list []string
	if p.served != "" {
		list = append(list, p.served)
	}
	for _, s := range p.servers {
		name, ok := p.nameOn(s)
		if !ok {
			continue
		}
		for _, family := range families(s.last.Info.Models) {
			ids := modelIDs(family)
			if !slices.Contains(ids, name) {
				continue
			}
			for _, id := range ids {
				if !slices.Contains(list, id) {
					list = append(list, id)
				}
			}
		}
	}
	return list
}

// isOf tells whether the pool is that of a model under these names.
func (p *Pool) isOf(family []engine.Model) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(family, func(m engine.Model) bool {
		return m.ID == p.name || m.Root == p.root || slices.Contains(p.servedNames(), m.ID)
	})
}

// allAliases lists the names of the model for pages: without its own and the
// one that the engines call it by. Callers hold mu.
func (p *Pool) allAliases() []string {
	list := slices.Clone(p.configured.Aliases)
	for _, name := range append(p.servedNames(), p.defaults...) {
		if name != p.name && name != p.served && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// setDefaults puts in the aliases that hold as long as there is but one model.
func (p *Pool) setDefaults(aliases []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.defaults = aliases
}

// directory finds pools by name. It is immutable.
type directory struct {
	pools []*Pool
	exact map[string]*Pool
	globs []glob
	// unassigned are the servers that no pool has.
	unassigned []ServerView
	// awaiting is set while a server was not asked yet, which may turn out to
	// serve any name.
	awaiting bool
}

// glob is a pattern, split at its stars.
type glob struct {
	parts []string
	pool  *Pool
}

// newDirectory writes the names of the pools down, and tells each its default
// aliases. A model's name comes before
// an alias, an alias before a served name; of equals the first one holds.
func newDirectory(pools []*Pool) *directory {
	d := &directory{pools: pools, exact: map[string]*Pool{}}
	add := func(name string, p *Pool) {
		if _, taken := d.exact[name]; !taken {
			d.exact[name] = p
		}
	}
	for _, p := range pools {
		add(p.name, p)
	}
	for _, p := range pools {
		aliases, _ := p.names()
		for _, a := range aliases {
			if strings.Contains(a, "*") {
				d.globs = append(d.globs, glob{strings.Split(a, "*"), p})
			} else {
				add(a, p)
			}
		}
	}
	for _, p := range pools {
		_, served := p.names()
		for _, name := range served {
			add(name, p)
		}
	}
	for _, p := range pools {
		var defaults []string
		if len(pools) == 1 {
			defaults = []string{claudeAlias}
			d.globs = append(d.globs, glob{strings.Split(claudeAlias, "*"), p})
		}
		p.setDefaults(defaults)
	}
	return d
}

func (d *directory) lookup(name string) (*Pool, bool) {
	if name == "" {
		if len(d.pools) == 1 {
			return d.pools[0], true
		}
		return nil, false
	}
	if p, ok := d.exact[name]; ok {
		return p, true
	}
	for _, g := range d.globs {
		if matches(g.parts, name) {
			return g.pool, true
		}
	}
	return nil, false
}

// matches tells whether a name has the parts of a pattern in their order, with
// any text between them, slashes included.
func matches(parts []string, name string) bool {
	last := len(parts) - 1
	name, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, parts[last])
}
