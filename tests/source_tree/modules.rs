//! The modules of a crate, and what each names of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::source::{Source, for_tests, idents, item_attributes, relative, source};

/// Index into [`Crate::modules`]; 0 is the root.
pub type Id = usize;

/// The modules that a root file declares, itself and those under `cfg(test)` apart.
pub struct Crate {
    pub modules: Vec<Module>,
}

pub struct Module {
    /// The file that it stands in.
    pub file: String,
    parent: Id,
    children: BTreeMap<String, Id>,
    /// Names that `use` brings, and the paths that they stand for.
    uses: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
    items: BTreeSet<String>,
    paths: Vec<Named>,
}

/// A path in a module's code.
struct Named {
    line: usize,
    segments: Vec<String>,
    imported: bool,
    /// Brings a name to other modules, and is no use of it.
    exported: bool,
}

/// A path that leads to a module of the crate.
pub struct Import {
    pub from: Id,
    pub line: usize,
    pub path: String,
    /// The module that is named, or whose name is used.
    pub named: Id,
    /// The module that defines what is used, however it is re-exported.
    pub definer: Id,
    pub exported: bool,
}

impl Module {
    /// Whether a `use` brings the name.
    fn binds(&self, name: &str) -> bool {
        self.uses.iter().any(|(bound, _)| bound == name)
    }
}

/// What a path leads to.
#[derive(Clone, Copy)]
enum Target {
    Module(Id),
    /// An item that `definer` defines, found in `named`.
    Item {
        named: Id,
        definer: Id,
    },
}

impl Crate {
    /// Reads the files as the compiler does, from the root on.
    pub fn read(root: &Path) -> Self {
        Self::of(&relative(root), &source)
    }

    pub fn of(root: &str, files: &dyn Fn(&str) -> Option<Rc<Source>>) -> Self {
        let mut this = Self {
            modules: Vec::new(),
        };
        let folder = Path::new(root).parent().unwrap().to_owned();
        let source = files(root).unwrap_or_else(|| panic!("no {root}"));
        this.add(root, 0, &source.file.items, &folder, &folder, files);
        this
    }

    /// `folder` is where `#[path]` counts from, `children` where modules are otherwise.
    fn add(
        &mut self,
        file: &str,
        parent: Id,
        items: &[syn::Item],
        folder: &Path,
        children: &Path,
        files: &dyn Fn(&str) -> Option<Rc<Source>>,
    ) -> Id {
        let id = self.modules.len();
        let mut names = Names::default();
        for item in items
            .iter()
            .filter(|item| !for_tests(item_attributes(item)))
        {
            names.visit_item(item);
        }
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            uses: names.uses,
            globs: names.globs,
            items: names.items,
            paths: names.paths,
        });
        for item in items {
            let syn::Item::Mod(module) = item else {
                continue;
            };
            if for_tests(&module.attrs) {
                continue;
            }
            let name = module.ident.to_string();
            let inner = children.join(&name);
            let child = if let Some((_, items)) = &module.content {
                self.add(file, id, items, &inner, &inner, files)
            } else {
                self.add_file(file, id, module, folder, children, files)
            };
            self.modules[id].children.insert(name, child);
        }
        id
    }

    fn add_file(
        &mut self,
        file: &str,
        parent: Id,
        module: &syn::ItemMod,
        folder: &Path,
        children: &Path,
        files: &dyn Fn(&str) -> Option<Rc<Source>>,
    ) -> Id {
        let name = module.ident.to_string();
        let beside = children.join(format!("{name}.rs"));
        let inside = children.join(&name).join("mod.rs");
        let mut candidates: Vec<_> = path_attributes(module)
            .into_iter()
            .map(|path| (folder.join(path), true))
            .collect();
        if candidates.is_empty() {
            candidates = vec![(beside, false), (inside, true)];
        }
        let mut found = None;
        for (path, owns_folder) in candidates {
            let path = normal(&path);
            let Some(source) = files(&path) else { continue };
            let folder = Path::new(&path).parent().unwrap().to_owned();
            let children = if owns_folder {
                folder.clone()
            } else {
                folder.join(&name)
            };
            let id = self.add(&path, parent, &source.file.items, &folder, &children, files);
            found = Some(id);
        }
        found.unwrap_or_else(|| panic!("{file}: no file for module {name}"))
    }

    /// Every use of another module, or of what it defines.
    pub fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            for path in &module.paths {
                let Some(target) = self.resolve(from, &path.segments, 0) else {
                    continue;
                };
                let (named, definer) = match target {
                    // A variable of that name.
                    Target::Module(_) if !path.imported && path.segments.len() == 1 => continue,
                    Target::Module(id) => (id, id),
                    Target::Item { named, definer } => (named, definer),
                };
                imports.push(Import {
                    from,
                    line: path.line,
                    path: path.segments.join("::"),
                    named,
                    definer,
                    exported: path.exported,
                });
            }
        }
        imports
    }

    /// Paths of a module into other crates, and to names that every module has: line, path, and
    /// whether it is an import.
    pub fn outside(&self, from: Id) -> impl Iterator<Item = (usize, &[String], bool)> {
        let paths = self.modules[from].paths.iter();
        let outside = paths.filter(move |path| self.resolve(from, &path.segments, 0).is_none());
        outside.map(|path| (path.line, &path.segments[..], path.imported))
    }

    fn resolve(&self, from: Id, segments: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = segments.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent),
            name => self.lookup(from, name, depth)?,
        };
        for segment in rest {
            let Target::Module(id) = target else { break };
            target = match segment.as_str() {
                "self" => target,
                "super" => Target::Module(self.modules[id].parent),
                name => match self.lookup(id, name, depth) {
                    Some(target) => target,
                    // Another crate's.
                    None if self.modules[id].binds(name) => return None,
                    // What a macro has made.
                    None => Target::Item {
                        named: id,
                        definer: id,
                    },
                },
            };
        }
        Some(target)
    }

    /// What a name stands for in a module.
    fn lookup(&self, id: Id, name: &str, depth: usize) -> Option<Target> {
        // Imports that name each other.
        if depth > 16 {
            return None;
        }
        let module = &self.modules[id];
        if let Some(&child) = module.children.get(name) {
            return Some(Target::Module(child));
        }
        if module.items.contains(name) {
            return Some(Target::Item {
                named: id,
                definer: id,
            });
        }
        let through = |path: &[String]| match self.resolve(id, path, depth + 1)? {
            Target::Item { definer, .. } => Some(Target::Item { named: id, definer }),
            module => Some(module),
        };
        for (_, path) in module.uses.iter().filter(|(bound, _)| bound == name) {
            // `use name;` of another crate binds its own name.
            if path[..] != [name]
                && let Some(target) = through(path)
            {
                return Some(target);
            }
        }
        module.globs.iter().find_map(|glob| {
            let Target::Module(other) = self.resolve(id, glob, depth + 1)? else {
                return None;
            };
            self.lookup(other, name, depth + 1)
        })
    }
}

/// The files of `#[path = "..."]`, and of `#[cfg_attr(..., path = "...")]`, of which each is read.
fn path_attributes(module: &syn::ItemMod) -> Vec<String> {
    let mut paths = Vec::new();
    for attribute in &module.attrs {
        match &attribute.meta {
            syn::Meta::NameValue(value) if value.path.is_ident("path") => {
                if let syn::Expr::Lit(literal) = &value.value
                    && let syn::Lit::Str(path) = &literal.lit
                {
                    paths.push(path.value());
                }
            }
            syn::Meta::List(list) if list.path.is_ident("cfg_attr") => {
                // The value stands at the end.
                let last = list.tokens.clone().into_iter().last();
                if idents(list.tokens.clone()).contains(&"path".to_owned())
                    && let Some(TokenTree::Literal(path)) = last
                {
                    paths.push(path.to_string().trim_matches('"').to_owned());
                }
            }
            _ => {}
        }
    }
    paths
}

/// Without `..`.
fn normal(path: &Path) -> String {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out.to_str().unwrap().replace('\\', "/")
}

/// What a module's own items name; its submodules are apart.
#[derive(Default)]
struct Names {
    uses: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
    items: BTreeSet<String>,
    paths: Vec<Named>,
}

impl Names {
    fn path(&mut self, line: usize, segments: Vec<String>) {
        self.paths.push(Named {
            line,
            segments,
            imported: false,
            exported: false,
        });
    }

    fn import(&mut self, tree: &syn::UseTree, mut path: Vec<String>, exported: bool) {
        let mut leaf = |ident: &syn::Ident, bound: &syn::Ident| {
            // `use a::{self}` brings `a`.
            let bound = if ident == "self" && ident == bound {
                path.last().cloned().unwrap_or_default()
            } else {
                bound.to_string()
            };
            let mut path = path.clone();
            if ident != "self" || path.is_empty() {
                path.push(ident.to_string());
            }
            self.uses.push((bound, path.clone()));
            self.paths.push(Named {
                line: ident.span().start().line,
                segments: path,
                imported: true,
                exported,
            });
        };
        match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(&tree.tree, path, exported);
            }
            syn::UseTree::Name(tree) => leaf(&tree.ident, &tree.ident),
            syn::UseTree::Rename(tree) => leaf(&tree.ident, &tree.rename),
            syn::UseTree::Glob(tree) => {
                self.globs.push(path.clone());
                self.paths.push(Named {
                    line: tree.star_token.spans[0].start().line,
                    segments: path,
                    imported: true,
                    exported,
                });
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, path.clone(), exported);
                }
            }
        }
    }

    /// Paths in a macro's tokens, which have no tree.
    fn tokens(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let colons = |i: usize| {
            let colon =
                |tree: &TokenTree| matches!(tree, TokenTree::Punct(p) if p.as_char() == ':');
            trees.get(i..i + 2).is_some_and(|two| two.iter().all(colon))
        };
        let ident = |i: usize| match trees.get(i) {
            Some(TokenTree::Ident(ident)) => Some(ident),
            _ => None,
        };
        let mut i = 0;
        while i < trees.len() {
            let dollar =
                i > 0 && matches!(&trees[i - 1], TokenTree::Punct(p) if p.as_char() == '$');
            match &trees[i] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) if !dollar || first == "crate" => {
                    let line = first.span().start().line;
                    let mut segments = vec![first.to_string()];
                    while colons(i + 1)
                        && let Some(next) = ident(i + 3)
                    {
                        segments.push(next.to_string());
                        i += 3;
                    }
                    self.path(line, segments);
                }
                _ => {}
            }
            i += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item as I;
        if for_tests(item_attributes(item)) {
            return;
        }
        let ident = match item {
            I::Const(item) => Some(&item.ident),
            I::Enum(item) => Some(&item.ident),
            I::Fn(item) => Some(&item.sig.ident),
            I::Macro(item) => item.ident.as_ref(),
            I::Static(item) => Some(&item.ident),
            I::Struct(item) => Some(&item.ident),
            I::Trait(item) => Some(&item.ident),
            I::Type(item) => Some(&item.ident),
            I::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.items.extend(ident.map(ToString::to_string));
        // Its items are another module's.
        if !matches!(item, I::Mod(_)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let exported = !matches!(item.vis, syn::Visibility::Inherited);
            self.import(&item.tree, Vec::new(), exported);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (path.leading_colon, path.segments.first()) {
            let line = first.ident.span().start().line;
            let segments = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.path(line, segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.visit_path(&mac.path);
        self.tokens(mac.tokens.clone());
    }

    // Where a name is seen, and attributes, are no uses.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}
