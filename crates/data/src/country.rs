//! Countries: codes, names and positions of their principal cities.

use std::fmt;

/// A country by its ISO 3166-1 alpha-2 code (and `XK`, Kosovo), upper case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Country([u8; 2]);

impl Country {
    /// Parses a two-letter code in upper or lower case.
    ///
    /// `None` for codes that are not a country (`??`, `EU`, `A1`).
    pub fn from_code(code: &str) -> Option<Country> {
        let code: [u8; 2] = code.as_bytes().try_into().ok()?;
        let code = code.map(|letter| letter.to_ascii_uppercase());
        row(code).map(|_| Country(code))
    }

    /// Parses an English short name, as in the tz database and WonderProxy's tables.
    pub(crate) fn from_name(name: &str) -> Option<Country> {
        let (code, ..) = COUNTRIES.iter().find(|(_, known, ..)| known.eq_ignore_ascii_case(name))?;
        Country::from_code(code)
    }

    /// The two-letter code.
    pub fn code(&self) -> &str {
        std::str::from_utf8(&self.0).expect("codes are ASCII letters")
    }

    /// The English short name.
    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.row().1
    }

    /// Great-circle distance between the principal cities of two countries, km (haversine).
    pub fn distance_km(&self, other: Country) -> f64 {
        let (_, _, lat1, lon1) = *self.row();
        let (_, _, lat2, lon2) = *other.row();
        let half_chord = |a: f64, b: f64| {
            let sine = libm::sin((b - a).to_radians() / 2.0);
            sine * sine
        };
        let h = half_chord(lat1, lat2)
            + libm::cos(lat1.to_radians()) * libm::cos(lat2.to_radians()) * half_chord(lon1, lon2);
        2.0 * 6371.0 * libm::asin(libm::sqrt(h.min(1.0)))
    }

    fn row(&self) -> &'static Row {
        row(self.0).expect("only listed codes make a Country")
    }
}

impl fmt::Debug for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Code, name, and position of the principal city in degrees of latitude and longitude.
type Row = (&'static str, &'static str, f64, f64);

fn row(code: [u8; 2]) -> Option<&'static Row> {
    COUNTRIES.binary_search_by(|(known, ..)| known.as_bytes().cmp(&code[..])).ok().map(|at| &COUNTRIES[at])
}

/// Codes and positions from the tz database (iso3166.tab, zone.tab: public domain), ascending by code.
const COUNTRIES: &[Row] = &[
    ("AD", "Andorra", 42.5, 1.5),
    ("AE", "United Arab Emirates", 25.3, 55.3),
    ("AF", "Afghanistan", 34.5, 69.2),
    ("AG", "Antigua & Barbuda", 17.1, -61.8),
    ("AI", "Anguilla", 18.2, -63.1),
    ("AL", "Albania", 41.3, 19.8),
    ("AM", "Armenia", 40.2, 44.5),
    ("AO", "Angola", -8.8, 13.2),
    ("AQ", "Antarctica", -77.8, 166.6),
    ("AR", "Argentina", -34.6, -58.5),
    ("AS", "American Samoa", -14.3, -170.7),
    ("AT", "Austria", 48.2, 16.3),
    ("AU", "Australia", -33.9, 151.2),
    ("AW", "Aruba", 12.5, -70.0),
    ("AX", "Åland Islands", 60.1, 19.9),
    ("AZ", "Azerbaijan", 40.4, 49.9),
    ("BA", "Bosnia & Herzegovina", 43.9, 18.4),
    ("BB", "Barbados", 13.1, -59.6),
    ("BD", "Bangladesh", 23.7, 90.4),
    ("BE", "Belgium", 50.8, 4.3),
    ("BF", "Burkina Faso", 12.4, -1.5),
    ("BG", "Bulgaria", 42.7, 23.3),
    ("BH", "Bahrain", 26.4, 50.6),
    ("BI", "Burundi", -3.4, 29.4),
    ("BJ", "Benin", 6.5, 2.6),
    ("BL", "St Barthelemy", 17.9, -62.9),
    ("BM", "Bermuda", 32.3, -64.8),
    ("BN", "Brunei", 4.9, 114.9),
    ("BO", "Bolivia", -16.5, -68.2),
    ("BQ", "Caribbean NL", 12.2, -68.3),
    ("BR", "Brazil", -23.5, -46.6),
    ("BS", "Bahamas", 25.1, -77.3),
    ("BT", "Bhutan", 27.5, 89.7),
    ("BV", "Bouvet Island", -54.4, 3.4),
    ("BW", "Botswana", -24.6, 25.9),
    ("BY", "Belarus", 53.9, 27.6),
    ("BZ", "Belize", 17.5, -88.2),
    ("CA", "Canada", 43.6, -79.4),
    ("CC", "Cocos (Keeling) Islands", -12.2, 96.9),
    ("CD", "Congo (Kinshasa)", -4.3, 15.3),
    ("CF", "Central African Rep.", 4.4, 18.6),
    ("CG", "Congo (Brazzaville)", -4.3, 15.3),
    ("CH", "Switzerland", 47.4, 8.5),
    ("CI", "Côte d'Ivoire", 5.3, -4.0),
    ("CK", "Cook Islands", -21.2, -159.8),
    ("CL", "Chile", -33.5, -70.7),
    ("CM", "Cameroon", 4.0, 9.7),
    ("CN", "China", 31.2, 121.5),
    ("CO", "Colombia", 4.6, -74.1),
    ("CR", "Costa Rica", 9.9, -84.1),
    ("CU", "Cuba", 23.1, -82.4),
    ("CV", "Cape Verde", 14.9, -23.5),
    ("CW", "Curaçao", 12.2, -69.0),
    ("CX", "Christmas Island", -10.4, 105.7),
    ("CY", "Cyprus", 35.2, 33.4),
    ("CZ", "Czech Republic", 50.1, 14.4),
    ("DE", "Germany", 52.5, 13.4),
    ("DJ", "Djibouti", 11.6, 43.1),
    ("DK", "Denmark", 55.7, 12.6),
    ("DM", "Dominica", 15.3, -61.4),
    ("DO", "Dominican Republic", 18.5, -69.9),
    ("DZ", "Algeria", 36.8, 3.0),
    ("EC", "Ecuador", -2.2, -79.8),
    ("EE", "Estonia", 59.4, 24.8),
    ("EG", "Egypt", 30.1, 31.2),
    ("EH", "Western Sahara", 27.1, -13.2),
    ("ER", "Eritrea", 15.3, 38.9),
    ("ES", "Spain", 40.4, -3.7),
    ("ET", "Ethiopia", 9.0, 38.7),
    ("FI", "Finland", 60.2, 25.0),
    ("FJ", "Fiji", -18.1, 178.4),
    ("FK", "Falkland Islands", -51.7, -57.9),
    ("FM", "Micronesia", 7.4, 151.8),
    ("FO", "Faroe Islands", 62.0, -6.8),
    ("FR", "France", 48.9, 2.3),
    ("GA", "Gabon", 0.4, 9.4),
    ("GB", "United Kingdom", 51.5, -0.1),
    ("GD", "Grenada", 12.1, -61.8),
    ("GE", "Georgia", 41.7, 44.8),
    ("GF", "French Guiana", 4.9, -52.3),
    ("GG", "Guernsey", 49.5, -2.5),
    ("GH", "Ghana", 5.5, -0.2),
    ("GI", "Gibraltar", 36.1, -5.3),
    ("GL", "Greenland", 64.2, -51.7),
    ("GM", "Gambia", 13.5, -16.6),
    ("GN", "Guinea", 9.5, -13.7),
    ("GP", "Guadeloupe", 16.2, -61.5),
    ("GQ", "Equatorial Guinea", 3.8, 8.8),
    ("GR", "Greece", 38.0, 23.7),
    ("GS", "South Georgia & the South Sandwich Islands", -54.3, -36.5),
    ("GT", "Guatemala", 14.6, -90.5),
    ("GU", "Guam", 13.5, 144.8),
    ("GW", "Guinea-Bissau", 11.8, -15.6),
    ("GY", "Guyana", 6.8, -58.2),
    ("HK", "Hong Kong", 22.3, 114.2),
    ("HM", "Heard Island & McDonald Islands", -53.1, 73.5),
    ("HN", "Honduras", 14.1, -87.2),
    ("HR", "Croatia", 45.8, 16.0),
    ("HT", "Haiti", 18.5, -72.3),
    ("HU", "Hungary", 47.5, 19.1),
    ("ID", "Indonesia", -6.2, 106.8),
    ("IE", "Ireland", 53.3, -6.2),
    ("IL", "Israel", 31.8, 35.2),
    ("IM", "Isle of Man", 54.1, -4.5),
    ("IN", "India", 22.5, 88.4),
    ("IO", "British Indian Ocean Territory", -7.3, 72.4),
    ("IQ", "Iraq", 33.4, 44.4),
    ("IR", "Iran", 35.7, 51.4),
    ("IS", "Iceland", 64.2, -21.9),
    ("IT", "Italy", 41.9, 12.5),
    ("JE", "Jersey", 49.2, -2.1),
    ("JM", "Jamaica", 18.0, -76.8),
    ("JO", "Jordan", 31.9, 35.9),
    ("JP", "Japan", 35.7, 139.7),
    ("KE", "Kenya", -1.3, 36.8),
    ("KG", "Kyrgyzstan", 42.9, 74.6),
    ("KH", "Cambodia", 11.6, 104.9),
    ("KI", "Kiribati", 1.4, 173.0),
    ("KM", "Comoros", -11.7, 43.3),
    ("KN", "St Kitts & Nevis", 17.3, -62.7),
    ("KP", "North Korea", 39.0, 125.8),
    ("KR", "South Korea", 37.5, 127.0),
    ("KW", "Kuwait", 29.3, 48.0),
    ("KY", "Cayman Islands", 19.3, -81.4),
    ("KZ", "Kazakhstan", 43.2, 77.0),
    ("LA", "Laos", 18.0, 102.6),
    ("LB", "Lebanon", 33.9, 35.5),
    ("LC", "St Lucia", 14.0, -61.0),
    ("LI", "Liechtenstein", 47.1, 9.5),
    ("LK", "Sri Lanka", 6.9, 79.8),
    ("LR", "Liberia", 6.3, -10.8),
    ("LS", "Lesotho", -29.5, 27.5),
    ("LT", "Lithuania", 54.7, 25.3),
    ("LU", "Luxembourg", 49.6, 6.2),
    ("LV", "Latvia", 57.0, 24.1),
    ("LY", "Libya", 32.9, 13.2),
    ("MA", "Morocco", 33.6, -7.6),
    ("MC", "Monaco", 43.7, 7.4),
    ("MD", "Moldova", 47.0, 28.8),
    ("ME", "Montenegro", 42.4, 19.3),
    ("MF", "Saint Martin", 18.1, -63.1),
    ("MG", "Madagascar", -18.9, 47.5),
    ("MH", "Marshall Islands", 7.2, 171.2),
    ("MK", "North Macedonia", 42.0, 21.4),
    ("ML", "Mali", 12.7, -8.0),
    ("MM", "Myanmar", 16.8, 96.2),
    ("MN", "Mongolia", 47.9, 106.9),
    ("MO", "Macau", 22.2, 113.5),
    ("MP", "Northern Mariana Islands", 15.2, 145.8),
    ("MQ", "Martinique", 14.6, -61.1),
    ("MR", "Mauritania", 18.1, -15.9),
    ("MS", "Montserrat", 16.7, -62.2),
    ("MT", "Malta", 35.9, 14.5),
    ("MU", "Mauritius", -20.2, 57.5),
    ("MV", "Maldives", 4.2, 73.5),
    ("MW", "Malawi", -15.8, 35.0),
    ("MX", "Mexico", 19.4, -99.2),
    ("MY", "Malaysia", 3.2, 101.7),
    ("MZ", "Mozambique", -26.0, 32.6),
    ("NA", "Namibia", -22.6, 17.1),
    ("NC", "New Caledonia", -22.3, 166.4),
    ("NE", "Niger", 13.5, 2.1),
    ("NF", "Norfolk Island", -29.1, 168.0),
    ("NG", "Nigeria", 6.5, 3.4),
    ("NI", "Nicaragua", 12.2, -86.3),
    ("NL", "Netherlands", 52.4, 4.9),
    ("NO", "Norway", 59.9, 10.8),
    ("NP", "Nepal", 27.7, 85.3),
    ("NR", "Nauru", -0.5, 166.9),
    ("NU", "Niue", -19.0, -169.9),
    ("NZ", "New Zealand", -36.9, 174.8),
    ("OM", "Oman", 23.6, 58.6),
    ("PA", "Panama", 9.0, -79.5),
    ("PE", "Peru", -12.1, -77.0),
    ("PF", "French Polynesia", -17.5, -149.6),
    ("PG", "Papua New Guinea", -9.5, 147.2),
    ("PH", "Philippines", 14.6, 121.0),
    ("PK", "Pakistan", 24.9, 67.0),
    ("PL", "Poland", 52.2, 21.0),
    ("PM", "St Pierre & Miquelon", 47.0, -56.3),
    ("PN", "Pitcairn", -25.1, -130.1),
    ("PR", "Puerto Rico", 18.5, -66.1),
    ("PS", "Palestine", 31.5, 34.5),
    ("PT", "Portugal", 38.7, -9.1),
    ("PW", "Palau", 7.3, 134.5),
    ("PY", "Paraguay", -25.3, -57.7),
    ("QA", "Qatar", 25.3, 51.5),
    ("RE", "Réunion", -20.9, 55.5),
    ("RO", "Romania", 44.4, 26.1),
    ("RS", "Serbia", 44.8, 20.5),
    ("RU", "Russia", 55.8, 37.6),
    ("RW", "Rwanda", -1.9, 30.1),
    ("SA", "Saudi Arabia", 24.6, 46.7),
    ("SB", "Solomon Islands", -9.5, 160.2),
    ("SC", "Seychelles", -4.7, 55.5),
    ("SD", "Sudan", 15.6, 32.5),
    ("SE", "Sweden", 59.3, 18.1),
    ("SG", "Singapore", 1.3, 103.8),
    ("SH", "St Helena", -15.9, -5.7),
    ("SI", "Slovenia", 46.0, 14.5),
    ("SJ", "Svalbard & Jan Mayen", 78.0, 16.0),
    ("SK", "Slovakia", 48.1, 17.1),
    ("SL", "Sierra Leone", 8.5, -13.2),
    ("SM", "San Marino", 43.9, 12.5),
    ("SN", "Senegal", 14.7, -17.4),
    ("SO", "Somalia", 2.1, 45.4),
    ("SR", "Suriname", 5.8, -55.2),
    ("SS", "South Sudan", 4.8, 31.6),
    ("ST", "Sao Tome & Principe", 0.3, 6.7),
    ("SV", "El Salvador", 13.7, -89.2),
    ("SX", "Sint Maarten", 18.1, -63.0),
    ("SY", "Syria", 33.5, 36.3),
    ("SZ", "Eswatini", -26.3, 31.1),
    ("TC", "Turks & Caicos Islands", 21.5, -71.1),
    ("TD", "Chad", 12.1, 15.1),
    ("TF", "French S. Terr.", -49.4, 70.2),
    ("TG", "Togo", 6.1, 1.2),
    ("TH", "Thailand", 13.8, 100.5),
    ("TJ", "Tajikistan", 38.6, 68.8),
    ("TK", "Tokelau", -9.4, -171.2),
    ("TL", "East Timor", -8.6, 125.6),
    ("TM", "Turkmenistan", 38.0, 58.4),
    ("TN", "Tunisia", 36.8, 10.2),
    ("TO", "Tonga", -21.1, -175.2),
    ("TR", "Turkey", 41.0, 29.0),
    ("TT", "Trinidad & Tobago", 10.7, -61.5),
    ("TV", "Tuvalu", -8.5, 179.2),
    ("TW", "Taiwan", 25.1, 121.5),
    ("TZ", "Tanzania", -6.8, 39.3),
    ("UA", "Ukraine", 50.4, 30.5),
    ("UG", "Uganda", 0.3, 32.4),
    ("UM", "US minor outlying islands", 28.2, -177.4),
    ("US", "United States", 40.7, -74.0),
    ("UY", "Uruguay", -34.9, -56.2),
    ("UZ", "Uzbekistan", 39.7, 66.8),
    ("VA", "Vatican City", 41.9, 12.5),
    ("VC", "St Vincent", 13.2, -61.2),
    ("VE", "Venezuela", 10.5, -66.9),
    ("VG", "British Virgin Islands", 18.4, -64.6),
    ("VI", "US Virgin Islands", 18.4, -64.9),
    ("VN", "Vietnam", 10.8, 106.7),
    ("VU", "Vanuatu", -17.7, 168.4),
    ("WF", "Wallis & Futuna", -13.3, -176.2),
    ("WS", "Samoa", -13.8, -171.7),
    ("XK", "Kosovo", 42.7, 21.2),
    ("YE", "Yemen", 12.8, 45.2),
    ("YT", "Mayotte", -12.8, 45.2),
    ("ZA", "South Africa", -26.2, 28.0),
    ("ZM", "Zambia", -15.4, 28.3),
    ("ZW", "Zimbabwe", -17.8, 31.1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_found_by_code_and_name() {
        assert!(COUNTRIES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (code, name, ..) in COUNTRIES {
            let country = Country::from_code(&code.to_lowercase()).unwrap();
            assert_eq!((country.code(), country.name()), (*code, *name));
            assert_eq!(Country::from_name(name), Some(country));
        }
        for none in ["??", "EU", "A1", "", "D", "DEU", "ä"] {
            assert_eq!(Country::from_code(none), None, "{none}");
        }
    }

    #[test]
    fn distances_are_those_of_the_globe() {
        let [de, nz, us] = ["DE", "NZ", "US"].map(|code| Country::from_code(code).unwrap());
        assert_eq!(de.distance_km(de), 0.0);
        assert!((de.distance_km(us) - 6385.0).abs() < 30.0, "Berlin - New York: {}", de.distance_km(us));
        assert!(de.distance_km(nz) > 17_000.0);
    }
}
