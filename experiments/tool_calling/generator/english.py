"""Common English words, so that the names of tools in training are as varied as those of real ones.

A small model copies and matches only the word pieces it has met often, in each of their forms
(`dilute`, ` dilute`, `Dilute`, `_dilute`). Some 2 500 words reach nearly every piece.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(text.split()))


ENGLISH_VERBS = _words(
    """
    accept access achieve acquire activate adapt adjust admit adopt advance advertise advise
    affect afford aim align allocate allow alter amend amplify announce answer anticipate
    apologize appear append applaud apply appoint appraise arrange arrest arrive ask assemble
    assert assess assist assume attach attack attempt attend attract auction audit automate avoid
    award back bake balance ban bargain bathe beat become begin bend bet bid bill bind bite blame
    blend bless block blow boil bold boost borrow bounce bow break breathe breed brew bridge bring
    broadcast browse brush bump burn bury buy call calibrate calm capture care carry carve cast
    catch categorize cause celebrate challenge change chase chat cheer chew chop circulate cite
    claim clarify classify clear click climb clip clone coach code collapse collect combine come
    comment communicate compile complain complete compose compress conceal conclude condense
    conduct confirm connect consider consolidate construct consult contact contain continue
    contribute control convince cook cool coordinate cope correct cough cover crack crash crawl
    credit critique crop cross crush cry cultivate cure curl customize cut cycle damage dance deal
    debate debug deceive decide declare decline decode decorate decrease decrypt dedicate defend
    define deflate delay delegate deliver demand demonstrate deny depart depend deploy deposit
    derive describe deserve design detach detect determine develop diagnose dial differ dig digest
    dilute dim direct disagree disappear discard discover discuss dismiss dispatch display dispute
    dissolve distribute dive divide dock donate double doubt drag drain dream dress drill drink
    drive drop dry dump duplicate dye earn eat edit educate elect eliminate embed emit employ
    empty encode encounter encourage encrypt end endorse enforce engage enhance enjoy enlarge
    enroll ensure enter entertain equip erase escape escort establish evacuate evaluate evolve
    examine exceed exchange excite exclude execute exercise exist expand expect expire explain
    explode explore express extend extract face fail fall fasten feed feel fetch fight fill
    finance finish fit fix flash float flood flow flush fly focus fold follow forbid force
    forecast forget forgive form format formulate forward found freeze frighten fry fulfil
    function fund furnish gain gather gauge gaze give glow glue go govern grab grade grant greet
    grill grind grip grow guard guess guide hack halt hammer hand handle hang happen harvest hatch
    haul heal hear heat help hide highlight hike hire hit hold hope host hug hunt hurry identify
    ignore illustrate imagine implement imply impress improve include increase index indicate
    inflate influence inform inherit inject injure insert insist install instruct insure integrate
    intend interpolate interpret interrupt interview introduce invent invert invest investigate
    iron irrigate isolate issue iterate join joke judge juggle jump justify keep kick kill kiss
    knit knock know label land last laugh launch lay lead lean leap learn leave lend let level
    license lick lie lift light like limit link listen live load locate log look loop lose love
    lower magnify mail maintain make manage manufacture map mark market marry match mature mean
    meet melt memorize mend mention merge migrate mind minimize mirror miss mix mock model modify
    motivate mount mourn multiply mute nail name navigate need negotiate nest nod nominate
    normalize note notice number obey object observe obtain occur offend offer omit operate oppose
    optimize organize orient outline overcome overlap owe own pack package paint pair parse
    participate pass paste pat patch peel perform permit persuade phone photograph pick pin pinch
    place please plot plug point polish pop populate post pour practice praise pray preach precede
    prefer prepare prescribe present preserve press pretend prevent preview prick probe proceed
    process procure produce profile program project promise promote prompt pronounce protect prove
    provide prune publish pull pump punch punish purchase push qualify quantify question queue
    quit quote race raise randomize reach react read realize rebuild recall receive recharge
    recite recognize recommend reconcile recover recruit recycle redeem redirect reduce refer
    refine reflect refresh refuse regret reheat reject relate relax release rely remain remember
    remind render renew repair repeat replace reply reproduce request require rescue reset resize
    resist resolve respond rest restart restore restrict result resume retain retire retrieve
    return reveal reverse revise revoke reward rewrite rhyme ride ring rinse rise risk roast rob
    roll rotate round rub ruin rule rush sail sample satisfy saw say scale scatter scold scrape
    scratch scream screen screw scrub seal secure see seek select sell separate serve settle sew
    shade shake shape shave shelter shift shine shock shoot shop shorten shout shrink shuffle shut
    sign signal simplify simulate sing sink sit ski skip slice slide slip slow smell smile smoke
    smooth sneeze soak solve sort sound sow spare spark speak specify spell spend spill spin split
    spoil spot spray spread sprint squash squeeze stack stage stain stamp stand stare state stay
    steal steer step stick stimulate stir stitch store strap strengthen stretch strike strip
    structure study stuff submit subscribe substitute subtract succeed suffer suggest suit summon
    supervise supply support suppose surf surprise surround survive suspect suspend swap swear
    sweep swim swing switch synchronize take talk tame tap target taste teach tear tease telephone
    tell tempt tend terminate test thank thaw think throw tick tickle tie tighten tip tire toggle
    touch tour tow trace trade train transcribe transform transmit transport trap travel treat
    tremble trick trigger trim trip trust try tune turn twist type undergo understand undo unfold
    unite unload unpack untie update upgrade urge use vaccinate value vanish vary verify veto view
    violate visit visualize vote wait wake walk wander want warm warn wash waste watch water wave
    weave weigh welcome whistle win wind wipe wish wonder work worry wrap wreck wrestle write yawn
    yell yield zip zoom
    """
)

ENGLISH_NOUNS = _words(
    """
    ability absence academy accent accident accountant acid acre act action activity actress
    addition admission adult advantage adventure advertisement advice affair agency agenda agent
    agreement agriculture aid airbag aircraft airport aisle alcohol algorithm alley alliance
    allowance almond alphabet altitude aluminum ambulance amendment amusement analysis anchor
    anniversary annual ant antenna anthem antibody antique anxiety apartment apology app appetite
    apple appliance application appointment apprentice apron aquarium arch archer architect
    archive area arena argument arithmetic arm army arrangement arrow art artery aspect asset
    assignment assistant association asteroid athlete atlas atmosphere atom attachment attic
    attitude attorney audience auditor aunt authority autumn avenue average aviation avocado axis
    axle baby backpack bacon bacteria badge bag baggage bakery ball ballet balloon ballot bamboo
    banana band bandage bandwidth banjo bank banker banner bar barbecue barber barcode barge bark
    barley barn barometer barrel barrier base baseball basement basin basis basket basketball bass
    bat batch bath bathroom bay bead beam bean bear beard beast bed bedroom bee beef beer beetle
    beginner behavior belief bell belt bench benefit berry beverage bicycle bike billboard binary
    biography biology birth birthday biscuit bishop blade blanket blaze blender blizzard blog
    blood blossom blouse blueprint board bolt bomb bond bone bonfire bonus boot booth bottle
    bottom boundary bowl bowling box boxer boy bracelet bracket brain brake branch brass bread
    breakfast breath breeze brick bride briefcase broccoli brochure broker bronze broom brother
    browser brush bubble bucket buckle bud buffer buffet bug builder building bulb bull bullet
    bulletin bundle bunker burger burglar bush business butcher butter butterfly button buyer
    buzzer cabbage cabin cabinet cable cactus cafe cage cake calculator calf calorie camel camp
    canal cancer candle candy cane canoe canvas canyon cap capability capacity cape capital
    captain caption carbon cardboard career caretaker caricature carnival carpenter carpet
    carriage carrot cartoon cartridge cascade case cash cashier casino cassette castle casual
    catalog catalyst caterpillar cathedral cattle cause cave ceiling cell cellar cemetery census
    center century cereal ceremony chain chair chairman chalk chamber champion chance chaos
    character charcoal charity charm chart chase chat cheek cheese chef chemical chemistry cherry
    chess chest chicken chief child childhood chimney chin chip chocolate choice choir chord
    chorus chronicle cinema circuit circus citizen civilization claim clarinet class classic
    classroom clause clay cleaner clerk client cliff climate clinic cloak clone closet cloth
    clothing cloud clover clown club cluster clutch coach coal coast coat cocktail coconut code
    coffee coil collar colleague collection college collision colony column comb combination
    comedy comet comfort comic command commander comment commerce commission committee commodity
    community compass compiler complaint complement component composer compound computer concept
    concrete condition conductor cone conference confession confidence conflict congress
    connection conscience consequence constant constellation constitution consultant consumer
    contest continent contract contractor contrast contribution controller convention conversation
    cook cookie copper copyright coral cord corn corner corporation corridor corruption cosmos
    cost costume cottage couch council counsel counter county couple courage courier cousin cover
    cow cowboy cradle craft crash crate crater crayon cream creature credit creek crew cricket
    crime crisis critic crocodile crossing crowd crown cruise crystal cube cucumber culture cup
    cupboard curb cure curiosity current curriculum curry curtain curve cushion custom cyclone
    cylinder dairy dam damage dancer danger darkness dashboard data date daughter dawn day
    daylight dead deadline deal dealer death debate debt debut decade deck decline decoration deer
    default defect defense deficit degree delay delegate delight delivery demand democracy den
    density dentist department departure deposit depot depth deputy desert designer desire desk
    dessert destiny detail detective diabetes diagram dialect dialogue diameter diamond diary
    dictionary dielectric difference difficulty digit dimension dinner dinosaur diploma diplomat
    direction director dirt disaster disc discipline discount discovery disease disguise disk
    distance district divider dividend division divorce dock document dollar dolphin donation
    donkey donor doorbell doorway dose dot dragon drain drama drawer drawing dream dress drift
    driver drizzle drone drought drug drum duck duet dungeon duration dust duty dwarf eagle ear
    earring earth earthquake east echo eclipse ecology economy edge edition editor education
    effect efficiency effort egg elbow election electricity electron elephant elevation elevator
    elf embassy emergency emotion emperor empire employee employer encounter encyclopedia ending
    enemy energy engineer engineering enterprise entertainment enthusiasm entrance entry envelope
    environment envy enzyme epidemic equality equator equipment era error essay essence estate
    estimate ethics evening evidence evolution exception exchange excuse exercise exhibition exit
    expansion expense experience experiment expert explanation explorer explosion export extension
    exterior eye eyebrow fabric facility fact factor factory faculty fairy faith falcon fame
    family fan fantasy fashion father faucet fault favor fear feast feather feature fee feedback
    fence fern fertilizer festival fever fiber fiction field figure filament filter finance finger
    fingerprint fire firefighter firm fish fisherman fist fitness flag flame flask flavor fleet
    flesh flood floor florist flour flow fluid flute fly foam fog folk football footprint force
    forehead forest fork formula fort fortune forum fossil foundation fountain fox fragment frame
    franchise freedom freezer freight frequency friction friend friendship frog front frost fruit
    function funeral fungus fur furniture fuse fusion future gadget galaxy gallon gap garage
    garbage garlic gas gate gateway gear gem gender general generation generator genius genre
    geography geology geometry germ gesture ghost giant gift giraffe girl glacier glance glove
    glue goal goat god gold golf goose gossip government grace grain grammar grandmother grape
    graphics grass gravel gravity grease grid grief grill grocery ground growth guarantee guard
    guardian guess guest guideline guilt guitar gulf gum gun gym habit hail hair haircut half hall
    hallway hammer hamster handbook handle harbor hardware harmony harness harp harvest hat hawk
    hazard head headache heading headphone health heap hearing heat heaven hedge heel helicopter
    helmet herb herd heritage hero hill hint hip history hobby hockey hole holiday home homework
    honey honor hood hook horizon hormone horn horror horse hose hospital host hostel household
    housing hunger hunter hurricane husband hut hydrogen hygiene icon idea identity ignition
    illness illusion image imagination impact import impression impulse inbox incident income
    index industry infant infection inflation influence ingredient inhabitant inheritance ink inn
    innovation input inquiry insect insight inspector instance instinct institute instruction
    instructor instrument insulation insulin insurance intellect intensity intention interaction
    interface interior interval intervention interview introduction invasion inventory
    investigation investor invitation iron irony isle item ivory jacket jail jam jar jaw jazz
    jeans jelly jet jewel jewelry joint joke journal journalist journey joy judge juice jungle
    junior jury justice kangaroo kayak kernel kettle keyboard kid kidney kilometer king kingdom
    kit kitchen kite kitten knee knife knight knob knot knowledge lab labor laboratory lace ladder
    lady lake lamb land landlord landmark landscape lane lantern laptop laser latitude laundry
    lava lawn lawyer layer layout leader leadership leaf leather lecture leg legend leisure lemon
    lens leopard letter lettuce liberty lid lifetime lightning limb lime line linen link lion lip
    liquid list literature liver lizard loaf lobby lobster locker locomotive log logic logo
    longitude loop lorry lot lotion lottery lounge love luck luggage lumber lunch lung luxury
    lyric machine machinery magazine magic magnet maid mail mailbox maintenance majority maker
    mall mammal manager mango mansion manual manuscript map marathon marble margin marina mark
    marker marriage mask massage master mat material mathematics mattress maximum mayor maze
    meadow meaning measurement meat mechanic mechanism media melody melon member membership
    membrane memory menace merchant mercury mercy merit mess metal meteor method metro microphone
    microscope microwave midnight migration mile military milk mill mind mineral minimum minister
    minor minority mint miracle mirror missile mission mistake mixture mobile mode moisture moment
    monastery money monkey monopoly monster month monument mood morality morning mosque mosquito
    motel mother motion motive motor motorcycle mouse mouth movement mud muffin mug multitude
    muscle mushroom music musician mystery myth nail narrative nation nature navigation navy neck
    necklace needle neighbor neighborhood nephew nerve nest net network neuron newspaper nickel
    niece night nightmare node noise nominee noodle noon north nose notebook notification notion
    novel nuance nuclear nurse nut nutrition oak oasis oat obstacle ocean octave offense office
    officer offset oil olive onion opera operation operator opinion opponent opportunity option
    orange orbit orchard orchestra organ organization orientation origin ornament orphan outcome
    outfit outlet output oval oven owl owner ownership oxygen oyster ozone pace packet pad page
    pain paint pair palace pan pancake panda panel panic pants parade paradise paragraph parallel
    parent parish park parliament parrot particle partner partnership party passage passenger
    passion pasta paste pastry patch path patience pattern pavement pea peace peach peak peanut
    pearl pedal peer pen penalty pencil pendulum penguin peninsula pension people pepper
    percentage perception performance perfume period permission personality perspective pest pet
    petition phantom pharmacy phase philosophy photographer physics pianist piano picnic picture
    pie piece pig pigeon pile pill pillar pillow pilot pin pine pioneer pipe pipeline pirate
    pistol pitch pixel pizza plain plan plane plantation plaster plastic plate platform plaza
    pleasure plot plug plum plumber pocket podcast poet poetry point poison pole police policy
    politics poll pollen pollution polygon polynomial pond pony pool popcorn population porch
    portal porter portion portrait position possession postcard poster pot potato pottery pound
    poverty powder power practice prayer precedent precision predator preference prejudice premise
    premium preparation presence present president pressure prestige prevention prey price priest
    prince princess principle printer prison privacy privilege prize probability problem procedure
    process processor producer profession professor profit program progress promise proof
    propaganda property prophet proportion proposal protection protest protocol prototype province
    proxy psychology pub public publication publisher pulse pump pumpkin punch pupil puppet puppy
    purchase purpose purse pyramid quality quarry quarter queen question queue quota rabbit race
    racket radar radiation radio radius raft rail railway rain rainbow raincoat rally ram ranch
    range rank rat ratio raven ray razor reaction reactor reader reality reason rebel receipt
    receiver reception recipient recital recognition recommendation recovery recruit rectangle
    recycling referee reference reform refrigerator refuge region register regret regulation
    rehearsal reign relation relationship relative relay release relief religion remark remedy
    remote renovation repair replica reply reporter reptile republic reputation requirement rescue
    research researcher reserve reservoir residence resident resistance resolution resort resource
    respect response responsibility rest result resume retirement retreat return revenge revenue
    reverse reviewer revision revolution reward rhythm ribbon rice rider ridge rifle ring riot
    risk ritual rival roast rock rocket rod roof root rope rose roster rotation router routine
    royalty rubber rubbish rug ruin ruler rumor runner runway sack sacrifice saddle safari safety
    sail sailor saint salad salary sale salmon salon salt sample sanctuary sand sandal sandwich
    sapphire satisfaction sauce sausage savings saxophone scale scandal scanner scarf scenario
    scene scenery scent scheme scholar scholarship school science scientist scissors scooter scope
    scorpion scout screen screw script scroll seal seat secret secretary section sector security
    seed segment selection semester seminar senate sense sensitivity sequel sequence series sermon
    servant serving session setting settlement sewage shade shadow shaft shampoo shape share shark
    sheep sheet shelf shell shelter sheriff shield shift shirt shock shoe shop shore shortage shot
    shoulder shovel shower shrimp shrine shuttle siege sight signal signature silence silk silver
    similarity singer sink siren sister site size skate skeleton sketch skill skin skirt skull sky
    slave sleeve slice slide slogan slope slot smile smoke snack snail snake snow soap soccer
    society sock sofa software solar soldier solo solution son sonnet soul sound soup source south
    space spark speaker specialist species specimen spectacle spectrum speech speed spell sphere
    spice spider spike spine spiral spirit sponge sponsor spoon sport spot spouse spray spring spy
    squad square squirrel stable stack stadium staff stage stain stair stake stamp standard staple
    starter state statement station statistics statue status steak steam stem step stereo stick
    stimulus sting stitch stomach stone storage storm story stove stranger strategy straw
    strawberry stream street strength stress strike string stripe stroke structure struggle studio
    study style subject submarine subscription subsidy substance suburb subway success sugar
    suggestion suit suitcase sum summary summer summit sun sunrise sunset superior supermarket
    supper supply support surface surgeon surgery surprise suspect suspension swamp swan sweater
    sweat swimming sword syllable symbol symphony symptom syndrome syntax syrup system tablet
    tackle tail tailor tale talent tank tanker tap tape target tariff taste tattoo tea teapot tear
    technician technique technology teenager telegram telescope television temper temperature
    temple tenant tendency tennis tension tent terminal terrace territory terror test testament
    text textbook texture theater theft theme theorem theory therapist therapy thesis thief thigh
    thing thirst thread threat throat throne thumb thunder tide tie tiger tile timber timetable
    tin tissue toast tobacco toe toilet tomato tomb tone tongue tool tooth top torch tornado
    tortoise tour tourism tourist tournament towel town toy trace track traction tractor trade
    trademark tradition traffic tragedy trail trailer trainer trait tram transaction transcript
    transfer transition transmission transport trap trash traveler tray treasure treasury treat
    treatment treaty trench trend trial triangle tribe tribute trick trolley troop trophy truck
    trumpet trunk trust truth tube tuna tune turbine turkey turn turtle twilight twin type typhoon
    umbrella uncertainty uncle uniform union universe university update upgrade urgency usage user
    utility vacancy vacation vaccine vacuum valley valve vampire van vanilla variable variant
    variety vase vault vegetable vehicle veil vein velocity velvet vendor venture venue verb
    verdict verse vessel veteran vicar victim victory view villa village villain vine vinegar
    vineyard violation violence violin virtue virus vision visitor vitamin vocabulary voice
    volcano voltage volume volunteer voucher voyage wage wagon waist waiter wall wallet walnut war
    wardrobe warehouse warning warranty warrior wash waste watch water waterfall wave wax wealth
    wedding week weekend weird west whale wheat wheel whistle wholesale widow width wife
    wilderness wildlife will willow wind windmill window wine wing winner winter wire wisdom wish
    witch witness wizard wolf wonder wood wool worker workshop world worm worth wreck wrist writer
    yacht yard yarn year yeast yogurt youth zebra zip zone zoo
    """
)

ENGLISH_ADJECTIVES = _words(
    """
    able absolute abstract academic accurate active actual acute additional adequate adjacent
    advanced aggressive alert alien alternative ambient ancient angry annual anonymous apparent
    appropriate arbitrary artificial assistant atomic automatic available aware awful bad bare
    basic beautiful big bitter blank blind blue bold brave brief bright broad broken brown busy
    calm capable careful cheap chemical civil classic clean clear clever closed coastal cold
    colonial common compact compatible complete complex compound comprehensive concrete confident
    conscious constant contemporary continuous cool correct cosmic crazy creative critical crucial
    cruel cubic cultural curious current daily dangerous dark dead dear decent deep definite
    delicate dense dependent detailed different difficult digital direct dirty distant distinct
    diverse domestic double drunk dry due dual dynamic eager early east eastern easy economic
    educational effective elaborate elderly electric electronic elegant eligible emotional empty
    endless entire equal essential eternal ethical even exact excellent exclusive exotic expensive
    experimental explicit external extra extreme fair faithful familiar famous fancy fast fat
    federal female few fierce final financial fine firm first fiscal flat flexible fluid foreign
    formal former forward fragile free frequent fresh friendly frozen full funny future general
    gentle genuine giant global golden gradual grand graphic grateful great green gross guilty
    handsome handy happy hard harsh healthy heavy helpful hidden high historic hollow holy honest
    horizontal hostile hot huge human humble hungry ideal identical idle illegal immediate immense
    imperial implicit important impossible indirect individual industrial inevitable infinite
    inner innocent instant intense interior internal international invisible isolated joint just
    keen key kind large last late lateral lazy leading left legal level liberal light likely
    linear liquid literary little live lively local lonely long loose loud low loyal lucky lunar
    mad magnetic main major male marine massive mature maximum mean mechanical medical medieval
    medium mental mere mild minimal minor minute missing mobile moderate modern modest molecular
    monetary monthly moral multiple municipal mutual naked narrow nasty national native natural
    naval near neat negative nervous neutral new next nice noble noisy normal north northern
    notable novel nuclear numerous obvious occasional odd official old open optical optimal
    optional oral orange ordinary organic original orthodox outdoor outer overall pale parallel
    partial particular passive patient peaceful perfect permanent persistent personal physical
    pink plain planned pleasant polar polite political poor popular portable positive possible
    potential powerful practical precious precise pregnant premium preliminary present previous
    primary prime principal prior private probable productive professional profound prominent
    proper proud public pure purple quarterly quick quiet radical random rapid rare raw ready real
    rear reasonable recent red regional regular relative relevant reliable religious remote
    residential rich right rigid rival robust romantic rotten rough round royal rubber rude rural
    sacred sad safe salty same satisfied scientific seasonal second secret secure select senior
    sensible sensitive separate serial serious severe shallow sharp short shy sick significant
    silent silly similar simple single skilled slight slim slow small smart smooth social soft
    solar sole solid sophisticated sour south southern spare spatial special specific spiritual
    square stable standard static steady steep stiff straight strange strategic strict strong
    structural stupid subsequent substantial subtle successful sudden sufficient suitable super
    superb supreme sure surplus sweet swift symbolic sympathetic systematic tall technical
    temporary tender terminal terrible thermal thick thin thorough tidy tight tiny tired total
    tough toxic traditional tropical true typical ugly ultimate unable uniform unique universal
    unknown unlikely unusual upper urban urgent used useful usual vague valid valuable variable
    various vast verbal vertical viable vicious violent virtual visible visual vital vivid vocal
    warm weak wealthy weekly western wet white whole wicked wide wild wise wooden worldwide worthy
    wrong yearly yellow young
    """
)
