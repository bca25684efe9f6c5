//! `mutants!`: a mutant is one entry, from which its type, its rules, its cases and its line of the catalog are made.

/// Mutants of a lock that is generic over its rules, and `visit_mutants`, which shows them in this order.
///
/// An entry says how the mutant is shown ([`Visitor::mutant`](crate::Visitor::mutant) or `coarse_mutant`), its type and name,
/// the protocol it is a mutant of, the checker that must catch it, the rules in which it differs from what is shipped, and what
/// is broken. Then its cases, unless the lock has the same for all rules.
macro_rules! mutants {
    ($lock:ident: $rules:ident, $params:ty, $name_type:ty; $(
        $(#[$doc:meta])*
        $show:ident $mutant:ident = $name:expr, $of:literal, $checker:ident, { $($rule:ident: $value:literal),* },
            $why:literal $(, $cases:expr)?;
    )+) => {
        /// Shows the mutants to `visitor`.
        pub(crate) fn visit_mutants(visitor: &mut impl crate::Visitor) {
            $(visitor.$show::<$lock<$mutant>>(crate::Mutant {
                of: $of,
                caught_by: crate::Checker::$checker,
                why: $why,
            });)+
        }

        $(
            #[doc = $why]
            $(#[$doc])*
            #[allow(unreachable_pub, reason = "tests of the explorer use some of them")]
            #[derive(Debug)]
            pub struct $mutant;

            impl $rules for $mutant {
                const NAME: $name_type = $name;
                $(const $rule: bool = $value;)*
            }

            $(impl crate::Proof for $lock<$mutant> {
                fn cases() -> Vec<crate::Case<$params>> {
                    $cases
                }
            })?
        )+
    };
}

pub(crate) use mutants;
