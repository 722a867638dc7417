//! Inspects the tokens of a type: the last segment of the type's path, and whether the type is a future.

use syn::{GenericArgument, PathArguments, PathSegment, Type, TypeParamBound};

/// Removes parentheses and the invisible groups of `macro_rules` around a type.
pub(crate) fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        Type::Paren(paren) => ungrouped(&paren.elem),
        other => other,
    }
}

/// Returns the last segment of a type's path.
pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ungrouped(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

/// Returns `T` of `Name<T, …>`.
fn argument_of<'a>(name: &str, ty: &'a Type) -> Option<&'a Type> {
    let segment = last_segment(ty).filter(|segment| segment.ident == name)?;
    let PathArguments::AngleBracketed(generics) = &segment.arguments else {
        return None;
    };
    generics.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

/// Returns `T` of `Pin<Box<dyn Future<Output = T> + …>>` or `impl Future<Output = T> + …`.
pub(crate) fn future_output(ty: &Type) -> Option<&Type> {
    let bounds = match ungrouped(ty) {
        Type::ImplTrait(hidden) => &hidden.bounds,
        boxed => match ungrouped(argument_of("Box", argument_of("Pin", boxed)?)?) {
            Type::TraitObject(object) => &object.bounds,
            _ => return None,
        },
    };
    let future = bounds.iter().find_map(future_bound)?;
    let PathArguments::AngleBracketed(generics) = &future.arguments else {
        return None;
    };
    generics.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
        _ => None,
    })
}

fn future_bound(bound: &TypeParamBound) -> Option<&PathSegment> {
    match bound {
        TypeParamBound::Trait(bound) => bound
            .path
            .segments
            .last()
            .filter(|segment| segment.ident == "Future"),
        _ => None,
    }
}

pub(crate) fn is_future(ty: &Type) -> bool {
    match ungrouped(ty) {
        Type::ImplTrait(hidden) => hidden
            .bounds
            .iter()
            .any(|bound| future_bound(bound).is_some()),
        named => last_segment(named)
            .is_some_and(|last| last.ident == "BoxFuture" || last.ident == "LocalBoxFuture"),
    }
}
